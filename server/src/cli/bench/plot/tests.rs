//! Charts as text: what must be in them, and what must not.

use super::*;

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn a_line_per_series_and_a_mark_per_point() {
    let chart = LineChart {
        title: "TTFT <p50>".into(),
        x: Axis::log("requests at once").with_ticks([1.0, 2.0, 4.0]),
        y: Axis::from_zero("ms"),
        series: vec![
            Series::new("first & only", vec![(1.0, 10.0), (2.0, 20.0), (4.0, 35.0)]),
            Series::new("floor", vec![(1.0, 5.0), (4.0, 5.0)]).dashed(),
        ],
    };
    let svg = chart.render();
    assert!(svg.contains("TTFT &lt;p50&gt;") && svg.contains("first &amp; only") && !svg.contains("NaN"), "{svg}");
    assert_eq!((count(&svg, "<circle"), count(&svg, "fill=\"none\"")), (3, 2));
    assert_eq!(count(&svg, "stroke-dasharray"), 2, "the line and its legend");
    assert!(svg.contains(">requests at once</text>") && svg.contains(">40</text>"), "{svg}");
}

#[test]
fn a_value_without_a_place_interrupts_the_line() {
    let points = vec![(1.0, 1.0), (2.0, 2.0), (3.0, f64::NAN), (4.0, 2.0), (5.0, 0.0), (6.0, 1.0)];
    let line = |y| LineChart { y, series: vec![Series::new("a", points.clone())], ..LineChart::default() }.render();
    assert_eq!(count(&line(Axis::linear("y")), "fill=\"none\""), 2);
    assert_eq!(count(&line(Axis::log("y")), "fill=\"none\""), 3, "0 has no logarithm");
}

#[test]
fn bars_stand_on_zero() {
    let chart = BarChart {
        y: Axis::from_zero("%"),
        groups: vec!["1".into(), "2".into()],
        series: vec![("ours".into(), vec![50.0, 100.0]), ("Belady".into(), vec![100.0, f64::NAN])],
        ..BarChart::default()
    };
    let svg = chart.render();
    let heights: Vec<f64> = svg
        .lines()
        .filter(|line| line.starts_with("<rect x") && !line.contains("<text"))
        .map(|line| line.split("height=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or(""))
        .map(|text| text.parse().expect("a number"))
        .collect();
    assert_eq!(heights.len(), 3, "{svg}");
    assert!((heights[0] * 2.0 - heights[1]).abs() < 0.2 && heights[1] == heights[2], "{heights:?}");
}

#[test]
fn nothing_to_draw_says_so() {
    assert!(LineChart::default().render().contains("no data"));
    assert!(BarChart::default().render().contains("no data"));
}
