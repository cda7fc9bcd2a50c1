//! One axis of a chart: its range, its ticks, and where a value stands on it.
//!
//! Ticks are 1, 2 or 5 times a power of ten, as people count. Rejected: equal parts of the data's range, whose labels
//! nobody can read at a glance.

/// How values are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences take equal space.
    #[default]
    Linear,
    /// Equal ratios take equal space; values of 0 and less are left out.
    Log,
}

/// What a chart says about an axis.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Layout.
    pub scale: Scale,
    /// Where ticks stand; chosen if empty.
    pub ticks: Vec<f64>,
    /// Begins at 0 (linear axes only).
    pub from_zero: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// A linear axis that begins at 0.
    pub fn from_zero(label: impl Into<String>) -> Self {
        Self { from_zero: true, ..Self::linear(label) }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label) }
    }

    /// With ticks at these values.
    pub fn with_ticks(self, ticks: impl IntoIterator<Item = f64>) -> Self {
        Self { ticks: ticks.into_iter().collect(), ..self }
    }

    /// True if the value has a place on this axis.
    pub fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::Linear || value > 0.0)
    }

    /// Fit the axis to values, of which it uses those it can show, over `length` pixels; `None` if there are none.
    pub fn fit(&self, values: impl Iterator<Item = f64>, length: f64) -> Option<Fitted> {
        let shown = values.chain(self.ticks.iter().copied()).filter(|&value| self.shows(value));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return None;
        }
        let n_wanted = (length / 50.0).clamp(3.0, 9.0);
        let own = (!self.ticks.is_empty()).then(|| self.ticks.clone());
        Some(match self.scale {
            Scale::Linear => fit_linear(if self.from_zero { low.min(0.0) } else { low }, high, n_wanted, own),
            Scale::Log => fit_log(low, high, n_wanted, own),
        })
    }
}

/// An axis with its range and ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    scale: Scale,
    low: f64,
    high: f64,
    /// Values that get a line and a label, ascending.
    pub ticks: Vec<f64>,
}

impl Fitted {
    /// Where a value stands: 0 at the low end, 1 at the high end.
    pub fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

fn fit_linear(low: f64, high: f64, n_wanted: f64, ticks: Option<Vec<f64>>) -> Fitted {
    // A single value gets room around it.
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    let raw = span / n_wanted;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|&s| s >= raw * 0.999).unwrap_or(raw);
    // Own ticks: the range is that of the data, with some air.
    if let Some(ticks) = ticks {
        return Fitted { scale: Scale::Linear, low: low - span * 0.02, high: high + span * 0.02, ticks };
    }
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let last = if last > first { last } else { first + 1.0 };
    let ticks = (0..=(last - first) as u32).map(|i| (first + f64::from(i)) * step).collect();
    Fitted { scale: Scale::Linear, low: first * step, high: last * step, ticks }
}

fn fit_log(low: f64, high: f64, n_wanted: f64, ticks: Option<Vec<f64>>) -> Fitted {
    // Air of a thirtieth of the range at either end, at least a factor of 1.1.
    let air = (high / low).powf(1.0 / 30.0).max(1.1);
    let (low, high) = (low / air, high * air);
    let ticks = ticks.unwrap_or_else(|| {
        // From the power below the range, whose double may be in it.
        let decades = low.log10().floor() as i32..=high.log10().floor() as i32;
        let every = ((high / low).log10() / n_wanted).ceil().max(1.0) as i32;
        let inside = |multiples: &[f64]| -> Vec<f64> {
            let powers = decades.clone().filter(|power| power % every == 0);
            let all = powers.flat_map(|power| multiples.iter().map(move |m| m * 10f64.powi(power)));
            all.filter(|&tick| tick >= low && tick <= high).collect()
        };
        let fine = inside(&[1.0, 2.0, 5.0]);
        if every == 1 && fine.len() as f64 <= n_wanted + 3.0 { fine } else { inside(&[1.0]) }
    });
    Fitted { scale: Scale::Log, low, high, ticks }
}

/// A tick's or bar's value for people: short, thousands apart, no trailing zeros.
pub fn format_value(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e7).contains(&size) {
        return format!("{value:e}");
    }
    let digits = if size >= 100.0 || size == 0.0 { 0 } else { (2 - size.log10().floor() as i32).clamp(0, 6) as usize };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 && whole.len() > 4 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_cover_the_data() {
        let axis = Axis::from_zero("ms").fit([3.0, 97.0].into_iter(), 400.0).expect("values");
        assert_eq!(axis.ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!((axis.place(0.0), axis.place(50.0), axis.place(100.0)), (0.0, 0.5, 1.0));
        let axis = Axis::linear("ms").fit([7.0].into_iter(), 400.0).expect("one value");
        assert!(axis.place(7.0) >= 0.0 && axis.place(7.0) <= 1.0, "{axis:?}");
        assert_eq!(Axis::linear("ms").fit([f64::NAN].into_iter(), 400.0), None);
    }

    #[test]
    fn log_ticks() {
        let ticks = |low, high| Axis::log("x").fit([low, high].into_iter(), 400.0).expect("values").ticks;
        assert_eq!(ticks(1.0, 16.0), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(ticks(1.0, 1e4), [1.0, 10.0, 100.0, 1e3, 1e4]);
        assert!(ticks(1e-6, 1e12).len() <= 9);
        assert_eq!(Axis::log("x").fit([0.0, -1.0].into_iter(), 400.0), None, "no place for them");
        let own = Axis::log("x").with_ticks([1.0, 2.0, 4.0]).fit([1.0, 4.0].into_iter(), 400.0).expect("values");
        assert!((own.place(2.0) - 0.5).abs() < 1e-12 && own.ticks == [1.0, 2.0, 4.0]);
    }

    #[test]
    fn values_for_people() {
        let all = [0.0, 1.0, 0.25, 0.1 + 0.2, 1234.0, 12345.6, 1e9, -20000.0, 99.5, 1e-5].map(format_value);
        assert_eq!(all, ["0", "1", "0.25", "0.3", "1234", "12,346", "1e9", "-20,000", "99.5", "1e-5"]);
    }
}
