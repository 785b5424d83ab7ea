//! Plots as SVG that takes its colours from the page: `var(--c0)` to `var(--c7)` for contestants,
//! the text's colour for the rest.

use std::fmt::Write as _;

use super::words::{micros, short};

const WIDTH: f64 = 720.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 90.0;

/// One contestant of a plot: its name, its colour's number, and what is drawn.
pub(super) struct Series<'run, T> {
    pub(super) name: &'run str,
    pub(super) color: usize,
    pub(super) what: T,
}

/// Horizontal bars; a text is shown where there is no bar.
pub(super) fn bars(series: &[Series<'_, Result<f64, &'static str>>]) -> String {
    let most = series
        .iter()
        .filter_map(|one| one.what.as_ref().ok().copied())
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut out = open(series.len() as f64 * 24.0 + 4.0, "operations a second");
    for (i, one) in series.iter().enumerate() {
        let y = i as f64 * 24.0 + 2.0;
        let (width, text) = match one.what {
            Ok(rate) => (rate / most * (WIDTH - LEFT - RIGHT), short(rate)),
            Err(reason) => (0.0, reason.to_owned()),
        };
        write!(
            out,
            r#"{}<rect x="{LEFT}" y="{y}" width="{width:.1}" height="18" rx="2" fill="var(--c{})"/>{}"#,
            label(LEFT - 8.0, y + 13.0, "end", one.name),
            one.color,
            label(LEFT + width + 6.0, y + 13.0, "start", &text),
        )
        .expect("writing to a string");
    }
    out + "</svg>"
}

/// Median, 99 %, 99.9 % and the longest, in nanoseconds, on a scale of powers of ten.
pub(super) fn latencies(series: &[Series<'_, [f64; 4]>]) -> String {
    let all = || series.iter().flat_map(|one| one.what).filter(|nanos| *nanos > 0.0);
    let low = all().fold(f64::MAX, f64::min).log10().floor();
    let high = all().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let place =
        |nanos: f64| LEFT + (nanos.max(1.0).log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let bottom = series.len() as f64 * 24.0;
    let mut out = open(bottom + 22.0, "latency: median, 99 %, 99.9 %, longest");
    let mut power = low;
    while power <= high {
        let x = place(10_f64.powf(power));
        out += &line(x, 0.0, x, bottom, "grid");
        out += &label(x, bottom + 15.0, "middle", &micros(10_f64.powf(power)));
        power += 1.0;
    }
    for (i, one) in series.iter().enumerate() {
        let y = i as f64 * 24.0 + 12.0;
        let [median, _, _, longest] = one.what;
        out += &label(LEFT - 8.0, y + 4.0, "end", one.name);
        write!(
            out,
            r#"<line x1="{:.1}" y1="{y}" x2="{:.1}" y2="{y}" stroke="var(--c{})" stroke-width="2"/>"#,
            place(median),
            place(longest),
            one.color
        )
        .expect("writing to a string");
        for (nanos, radius) in one.what.into_iter().zip([6.0, 4.5, 3.5, 2.5]) {
            let title = micros(nanos);
            write!(
                out,
                r#"<circle cx="{:.1}" cy="{y}" r="{radius}" fill="var(--c{})"><title>{title}</title></circle>"#,
                place(nanos),
                one.color
            )
            .expect("writing to a string");
        }
    }
    out + "</svg>"
}

/// Memory over time: seconds and bytes, with the limit as a line.
pub(super) fn memory(series: &[Series<'_, Vec<(f64, f64)>>], limit_bytes: f64) -> String {
    const HEIGHT: f64 = 160.0;
    let points = || series.iter().flat_map(|one| &one.what);
    let last = points().map(|(seconds, _)| *seconds).fold(0.1, f64::max);
    let most = points().map(|(_, bytes)| *bytes).fold(limit_bytes, f64::max) * 1.05;
    let x = |seconds: f64| LEFT + seconds / last * (WIDTH - LEFT - RIGHT);
    let y = |bytes: f64| HEIGHT - bytes / most * HEIGHT;
    let mut out = open(HEIGHT + 22.0, "memory over time against the limit");
    out += &line(LEFT, HEIGHT, WIDTH - RIGHT, HEIGHT, "grid");
    out += &line(LEFT, y(limit_bytes), WIDTH - RIGHT, y(limit_bytes), "limit");
    out += &label(
        LEFT - 8.0,
        y(limit_bytes) + 4.0,
        "end",
        &format!("limit {:.0} MiB", limit_bytes / 1_048_576.0),
    );
    out += &label(LEFT, HEIGHT + 15.0, "middle", "0 s");
    out += &label(WIDTH - RIGHT, HEIGHT + 15.0, "middle", &format!("{last:.0} s"));
    series.iter().for_each(|one| out += &curve(one, x, y));
    out + "</svg>"
}

/// Rates over time: seconds, and operations a second.
pub(super) fn rates(series: &[Series<'_, Vec<(f64, f64)>>]) -> String {
    const HEIGHT: f64 = 160.0;
    let points = || series.iter().flat_map(|one| &one.what);
    let last = points().map(|(seconds, _)| *seconds).fold(0.1, f64::max);
    let most = points().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let x = |seconds: f64| LEFT + seconds / last * (WIDTH - LEFT - RIGHT);
    let y = |rate: f64| HEIGHT - rate / (most * 1.05) * HEIGHT;
    let mut out = open(HEIGHT + 22.0, "operations a second over time");
    for part in [0.0, 0.5, 1.0] {
        out += &line(LEFT, y(most * part), WIDTH - RIGHT, y(most * part), "grid");
        out +=
            &label(LEFT - 8.0, y(most * part) + 4.0, "end", &format!("{}/s", short(most * part)));
        out += &label(x(last * part), HEIGHT + 15.0, "middle", &format!("{:.1} s", last * part));
    }
    series.iter().for_each(|one| out += &curve(one, x, y));
    out + "</svg>"
}

fn curve(
    one: &Series<'_, Vec<(f64, f64)>>,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> String {
    if one.what.is_empty() {
        return String::new();
    }
    let points: Vec<_> =
        one.what.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
    format!(
        r#"<polyline points="{}" fill="none" stroke="var(--c{})" stroke-width="1.8"><title>{}</title></polyline>"#,
        points.join(" "),
        one.color,
        one.name
    )
}

fn open(height: f64, title: &str) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">"#)
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#)
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64, class: &str) -> String {
    format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#)
}
