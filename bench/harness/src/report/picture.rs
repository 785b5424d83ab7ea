//! Pictures for README: self-contained SVG files, readable in light and dark mode.

use std::collections::BTreeMap;

use super::page::{contestants, series};
use super::run::Run;
use super::svg::{self, Series};
use crate::sizes::parse_size;

const STYLE: &str = "<style>
svg { --text: #1f2328; --faint: #d5d8dc; --bad: #b3261e; font: 12px system-ui, sans-serif;
  --c0: #0b5fa5; --c1: #5aa0d8; --c2: #c2571a; --c3: #6b7f1e; --c4: #8a3fa0; --c5: #b58900; --c6: #4d6570; --c7: #a0304f }
@media (prefers-color-scheme: dark) { svg { --text: #e3e6ea; --faint: #3a4048; --bad: #ff8a80;
  --c0: #5db0f5; --c1: #a5d0f5; --c2: #f0965a; --c3: #b6cc5c; --c4: #cf8fe0; --c5: #e6c04f; --c6: #9fb4bf; --c7: #ee8aa6 } }
text { fill: var(--text) } .grid { stroke: var(--faint) } .limit { stroke: var(--bad); stroke-dasharray: 6 4 }
</style>";

/// The row's memory over time, all contestants.
pub(super) fn memory(run: &Run, row: &str) -> String {
    let names = contestants(run);
    let curves =
        series(run, &names, |name| Some(run.memory(row, name)).filter(|points| points.len() > 1));
    let limit = run.setting(row, "limit").and_then(|limit| parse_size(limit).ok()).unwrap_or(0);
    alone(&svg::memory(&curves, limit as f64), &curves)
}

/// Metrics of `bench warm`: requests a second, by the time since the process began to open the
/// store.
const AFTER_RESTART: &str = "requests_at_";

pub(super) fn has_restart(run: &Run) -> bool {
    !run.over_time("warm", AFTER_RESTART).is_empty()
}

/// Requests a second after a restart, with a warm image and without: of each moment the median over
/// rounds.
pub(super) fn restart(run: &Run) -> String {
    let points = run.over_time("warm", AFTER_RESTART);
    let curve = |kind: &str| {
        let mut at: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (seconds, _, rate) in points.iter().filter(|(_, which, _)| *which == kind) {
            at.entry((seconds * 1e3).round() as u64).or_default().push(*rate);
        }
        at.iter()
            .map(|(millis, rates)| (*millis as f64 / 1e3, crate::statistics::median(rates)))
            .collect::<Vec<_>>()
    };
    let curves = [
        Series { name: "with the warm image", color: 0, what: curve("with") },
        Series { name: "without", color: 2, what: curve("without") },
    ];
    alone(&svg::rates(&curves), &curves)
}

/// Adds the style of a page to a drawing: colours, and the names of its curves.
fn alone<T>(drawing: &str, curves: &[Series<'_, T>]) -> String {
    const KEY_HEIGHT: f64 = 22.0;
    let (head, body) = drawing.split_once('>').expect("a drawing begins with its tag");
    let (before, rest) = head.split_once("viewBox=\"0 0 ").expect("it says how large it is");
    let (size, after) = rest.split_once('"').expect("it says how large it is");
    let (width, height) = size.split_once(' ').expect("width and height");
    let height: f64 = height.parse().expect("a number");
    let mut key = String::new();
    let mut x = 4.0;
    for curve in curves {
        key += &format!(
            r#"<rect x="{x}" y="{}" width="10" height="10" rx="2" fill="var(--c{})"/><text x="{}" y="{}">{}</text>"#,
            height + 6.0,
            curve.color,
            x + 14.0,
            height + 15.0,
            curve.name
        );
        x += 30.0 + 6.5 * curve.name.len() as f64;
    }
    let body = body.strip_suffix("</svg>").expect("a drawing ends with its tag");
    let height = height + KEY_HEIGHT;
    format!(
        "{before}xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\"{after}>{STYLE}{body}{key}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::EXAMPLE;
    use super::*;

    #[test]
    fn a_picture_of_memory_has_a_curve_and_a_name_for_each_store_and_the_limit() {
        let picture = memory(&Run::parse(EXAMPLE).unwrap(), "get-zipf");
        assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"), "{picture}");
        assert_eq!(picture.matches("<polyline").count(), 1);
        assert!(
            picture.contains(">plimsoll</text>") && picture.contains("limit 256 MiB"),
            "{picture}"
        );
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn a_restart_is_drawn_from_the_medians_of_its_rounds() {
        let line = |at: &str, kind: &str, rate: u32| {
            format!(
                "m,2026-02-01T00:00:00Z,abc,warm,memory=1MiB what=after,requests_at_{at}_{kind},{rate}\n"
            )
        };
        let text = format!(
            "{}{}{}{}{}",
            crate::results::HEAD,
            line("0.10", "with", 100),
            line("0.10", "with", 300),
            line("0.20", "with", 400),
            line("0.10", "without", 50),
        );
        let run = Run::parse(&text).unwrap();
        assert!(has_restart(&run) && !has_restart(&Run::parse(EXAMPLE).unwrap()));
        let picture = restart(&run);
        assert_eq!(picture.matches("<polyline").count(), 2);
        // The median of two rounds is half of the largest rate.
        assert!(picture.contains("400/s") && picture.contains("200/s"), "{picture}");
        assert!(
            picture.contains(">with the warm image</text>") && picture.contains(">without</text>")
        );
    }
}
