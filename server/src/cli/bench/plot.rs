//! Charts as SVG text: lines and grouped bars, for HTML reports and documents.
//!
//! An SVG needs no fonts, no rasteriser and no crate, diffs as text, and stands inline in HTML. Rejected: a plotting crate
//! (megabytes of dependencies for two kinds of chart) and a script from elsewhere (a report must open without network).

use std::fmt::Write as _;

pub mod axis;

pub use axis::{Axis, Scale};
use axis::{Fitted, format_value};

/// Pixels, unless a chart says otherwise.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Distinguishable with the common colour blindnesses (Okabe and Ito).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4c9a", "#555555"];
/// Width of a character of 12 pixels' height, generously.
const CHARACTER: f64 = 6.7;
/// More points than this are drawn as a line only.
const MARKED_MAX: usize = 40;

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// For the legend; empty: not in it.
    pub name: String,
    /// x and y, in drawing order; a value that has no place on its axis interrupts the line.
    pub points: Vec<(f64, f64)>,
    /// A bound or a reference rather than a measurement.
    pub is_dashed: bool,
}

impl Series {
    /// A solid line.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, is_dashed: false }
    }

    /// The same, dashed.
    pub fn dashed(self) -> Self {
        Self { is_dashed: true, ..self }
    }
}

/// Lines over two axes.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    /// Above the chart.
    pub title: String,
    /// Horizontal.
    pub x: Axis,
    /// Vertical.
    pub y: Axis,
    /// Each with a colour of its own, in order.
    pub series: Vec<Series>,
}

/// Groups of bars side by side.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    /// Above the chart.
    pub title: String,
    /// Under the groups.
    pub x_label: String,
    /// Vertical; a linear one should begin at 0.
    pub y: Axis,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Name and a value per group; a value that has no place is left out.
    pub series: Vec<(String, Vec<f64>)>,
}

impl LineChart {
    /// An `<svg>` element.
    pub fn render(&self) -> String {
        let names: Vec<_> = self.series.iter().map(|line| (line.name.as_str(), line.is_dashed)).collect();
        let mut page = Page::new(&self.title, &names, true);
        let points = || self.series.iter().flat_map(|line| &line.points);
        let y = self.y.fit(points().map(|point| point.1), page.bottom - page.top);
        page.make_room_for(y.as_ref());
        let x = self.x.fit(points().map(|point| point.0), page.right - page.left);
        let (Some(x), Some(y)) = (x, y) else { return page.no_data() };
        page.y_axis(&y, &self.y.label);
        page.x_axis(&x, &self.x.label);
        for (at, line) in self.series.iter().enumerate() {
            let shown = |&(px, py): &(f64, f64)| self.x.shows(px) && self.y.shows(py);
            for run in line.points.split(|point| !shown(point)).filter(|run| !run.is_empty()) {
                let places: Vec<_> = run.iter().map(|&(px, py)| page.at(x.place(px), y.place(py))).collect();
                page.line(&places, COLOURS[at % COLOURS.len()], line.is_dashed);
            }
        }
        page.end()
    }
}

impl BarChart {
    /// An `<svg>` element.
    pub fn render(&self) -> String {
        let names: Vec<_> = self.series.iter().map(|(name, _)| (name.as_str(), false)).collect();
        let mut page = Page::new(&self.title, &names, false);
        let values = self.series.iter().flat_map(|(_, values)| values).copied();
        let y = self.y.fit(values, page.bottom - page.top);
        page.make_room_for(y.as_ref());
        let Some(y) = y.filter(|_| !self.groups.is_empty()) else { return page.no_data() };
        page.y_axis(&y, &self.y.label);
        let group_width = (page.right - page.left) / self.groups.len() as f64;
        let bar_width = (group_width * 0.8 / self.series.len() as f64).min(60.0);
        // Bars of a linear axis stand on its zero, of a logarithmic one on its low end.
        let zero = if self.y.scale == Scale::Linear { y.place(0.0).clamp(0.0, 1.0) } else { 0.0 };
        for (group, name) in self.groups.iter().enumerate() {
            let middle = page.left + group_width * (group as f64 + 0.5);
            page.text(middle, page.bottom + 18.0, "middle", name);
            for (at, (_, values)) in self.series.iter().enumerate() {
                let Some(&value) = values.get(group).filter(|&&value| self.y.shows(value)) else { continue };
                let left = middle + bar_width * (at as f64 - self.series.len() as f64 / 2.0);
                page.bar(left, bar_width, (zero, y.place(value)), COLOURS[at % COLOURS.len()], value);
            }
        }
        page.x_label(&self.x_label);
        page.end()
    }
}

/// The text so far, and where the plot's area lies in it.
struct Page {
    svg: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Page {
    fn new(title: &str, legend: &[(&str, bool)], is_line: bool) -> Self {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\" font-size=\"12\" \
             fill=\"#333\" role=\"img\">\n<title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"12\" y=\"22\" font-size=\"14\" font-weight=\"600\">{title}</text>\n",
            title = escape(title)
        );
        let (mut x, mut y) = (12.0, 42.0);
        for (at, (name, is_dashed)) in legend.iter().enumerate().filter(|(_, (name, _))| !name.is_empty()) {
            let width = 30.0 + name.chars().count() as f64 * CHARACTER + 8.0;
            if x + width > WIDTH - 12.0 && x > 12.0 {
                (x, y) = (12.0, y + 18.0);
            }
            let colour = COLOURS[at % COLOURS.len()];
            if is_line {
                let dash = dash(*is_dashed);
                let _ = write!(
                    svg,
                    "<path d=\"M{x:.1} {:.1}h20\" stroke=\"{colour}\" stroke-width=\"2.5\"{dash}/>",
                    y - 4.0
                );
            } else {
                let _ = write!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
                    x + 6.0,
                    y - 10.0
                );
            }
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>", x + 25.0, escape(name));
            x += width;
        }
        let has_legend = legend.iter().any(|(name, _)| !name.is_empty());
        let top = if has_legend { y + 16.0 } else { 40.0 };
        Self { svg, left: 64.0, right: WIDTH - 20.0, top, bottom: HEIGHT - 48.0 }
    }

    /// Labels of the vertical axis stand left of the area.
    fn make_room_for(&mut self, y: Option<&Fitted>) {
        let widths = y.iter().flat_map(|y| &y.ticks).map(|&tick| format_value(tick).chars().count());
        self.left = 42.0 + widths.max().unwrap_or(0) as f64 * CHARACTER;
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top))
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(self.svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let _ = writeln!(
            self.svg,
            "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"{colour}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn y_axis(&mut self, axis: &Fitted, label: &str) {
        for &tick in &axis.ticks {
            let (left, y) = self.at(0.0, axis.place(tick));
            self.rule((left, y), (self.right, y), "#e8e8e8");
            self.text(left - 8.0, y + 4.0, "end", &format_value(tick));
        }
        self.rule((self.left, self.bottom), (self.right, self.bottom), "#999");
        let middle = (self.top + self.bottom) / 2.0;
        let label = escape(label);
        let _ = writeln!(
            self.svg,
            "<text transform=\"translate(18 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{label}</text>"
        );
    }

    fn x_axis(&mut self, axis: &Fitted, label: &str) {
        // A label that would run into the one before it is left out; its line is not.
        let mut free_from = f64::NEG_INFINITY;
        for &tick in &axis.ticks {
            let (x, bottom) = self.at(axis.place(tick), 0.0);
            self.rule((x, bottom), (x, bottom + 5.0), "#999");
            let name = format_value(tick);
            let half = name.chars().count() as f64 * CHARACTER / 2.0;
            if x - half >= free_from {
                self.text(x, bottom + 18.0, "middle", &name);
                free_from = x + half + 4.0;
            }
        }
        self.x_label(label);
    }

    fn x_label(&mut self, label: &str) {
        self.text((self.left + self.right) / 2.0, HEIGHT - 10.0, "middle", label);
    }

    fn line(&mut self, places: &[(f64, f64)], colour: &str, is_dashed: bool) {
        let mut path = String::new();
        for (at, (x, y)) in places.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        let dash = dash(is_dashed);
        let _ = writeln!(
            self.svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}/>"
        );
        // A reference has no marks, so that a measurement on it shows.
        if places.len() <= MARKED_MAX && !(is_dashed && places.len() > 1) {
            for (x, y) in places {
                let _ = writeln!(self.svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{colour}\"/>");
            }
        }
    }

    /// A bar between two shares of the height, its value above it where there is room.
    fn bar(&mut self, left: f64, width: f64, (from, to): (f64, f64), colour: &str, value: f64) {
        let (low, high) = (from.min(to), from.max(to));
        let (y, bottom) = (self.at(0.0, high).1, self.at(0.0, low).1);
        let _ = writeln!(
            self.svg,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
            left + 1.0,
            (width - 2.0).max(1.0),
            bottom - y
        );
        let text = format_value(value);
        if text.chars().count() as f64 * CHARACTER <= width + 4.0 {
            self.text(left + width / 2.0, y - 4.0, "middle", &text);
        }
    }

    fn no_data(mut self) -> String {
        self.text(WIDTH / 2.0, HEIGHT / 2.0, "middle", "no data");
        self.end()
    }

    fn end(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

fn dash(is_dashed: bool) -> &'static str {
    if is_dashed { " stroke-dasharray=\"6 4\"" } else { "" }
}

/// Text for XML and HTML, in elements and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
