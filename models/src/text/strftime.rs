//! `strftime` for templates that print today's date, in UTC.
//!
//! Own and small: a date library for one template function would be the crate's largest dependency. The time is
//! injected, so rendering stays a pure function. Calendar: H. Hinnant's days-to-civil algorithm.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Civil {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    day_of_year: i64,
}

fn civil(days: i64) -> Civil {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let index = (5 * from_march + 2) / 153; // months since March
    let day = from_march - (153 * index + 2) / 5 + 1;
    let month = if index < 10 { index + 3 } else { index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    // Counted from March 1st, which is day 60 or 61 of its year.
    let day_of_year = if month > 2 { from_march + 60 + i64::from(is_leap) } else { from_march - 305 };
    Civil { year, month: month as usize, day, weekday: (days + 4).rem_euclid(7) as usize, day_of_year }
}

/// Format seconds since 1970 by a strftime pattern. `Err` names a directive that is not supported.
pub fn strftime(unix_s: i64, pattern: &str) -> Result<String, String> {
    let date = civil(unix_s.div_euclid(86_400));
    let second = unix_s.rem_euclid(86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let two = |n: i64| if unpadded { n.to_string() } else { format!("{n:02}") };
        let month = date.month as i64;
        out.push_str(&match directive {
            Some('Y') => date.year.to_string(),
            Some('y') => two(date.year.rem_euclid(100)),
            Some('m') => two(month),
            Some('d') => two(date.day),
            Some('H') => two(hour),
            Some('I') => two(hour12),
            Some('M') => two(minute),
            Some('S') => two(second % 60),
            Some('j') if unpadded => date.day_of_year.to_string(),
            Some('j') => format!("{:03}", date.day_of_year),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('A') => DAYS[date.weekday].into(),
            Some('a') => DAYS[date.weekday][..3].into(),
            Some('B') => MONTHS[date.month - 1].into(),
            Some('b' | 'h') => MONTHS[date.month - 1][..3].into(),
            Some('F') => format!("{}-{month:02}-{:02}", date.year, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('w') => date.weekday.to_string(),
            Some('%') => "%".into(),
            Some(other) => return Err(format!("%{other}")),
            None => return Err("a lone %".into()),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected strings from CPython: `datetime.fromtimestamp(t, timezone.utc).strftime(...)`.
    #[test]
    fn dates_are_those_of_python() {
        let all = "%Y-%m-%d %H:%M:%S %j %a %B %y %I %p %-d %w %A %b";
        let cases = [
            (0, "1970-01-01 00:00:00 001 Thu January 70 12 AM 1 4 Thursday Jan"),
            (951_827_696, "2000-02-29 12:34:56 060 Tue February 00 12 PM 29 2 Tuesday Feb"),
            (1_798_761_599, "2026-12-31 23:59:59 365 Thu December 26 11 PM 31 4 Thursday Dec"),
            (1_709_251_200, "2024-03-01 00:00:00 061 Fri March 24 12 AM 1 5 Friday Mar"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(strftime(seconds, all).unwrap(), expected);
        }
        assert_eq!(strftime(0, "%q").unwrap_err(), "%q");
        assert!(strftime(0, "%").is_err());
    }
}
