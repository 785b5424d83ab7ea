//! The miss-ratio curve as SVG: miss ratio over memory, one line per policy.

use std::fmt::Write;

use crate::policy::{MAX_MEMORY_BYTES, MIN_MEMORY_BYTES};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 60.0;
/// The curve ranges from 1/64 of the memory to four times the memory.
const HALVINGS: u32 = 6;
const DOUBLINGS: u32 = 2;
const COLOURS: [&str; 6] = ["#0b6e99", "#c4501b", "#3d8b37", "#7a4fa3", "#a67c00", "#555555"];

/// The memory sizes of a curve around `memory_bytes`, each twice the previous one, within the
/// limits of a cache.
pub fn memories(memory_bytes: u64) -> Vec<u64> {
    memories_between(memory_bytes, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)
}

fn memories_between(memory_bytes: u64, least: u64, most: u64) -> Vec<u64> {
    (0..=HALVINGS + DOUBLINGS)
        .map(|step| (u128::from(memory_bytes) << step) >> HALVINGS)
        .filter_map(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| (least..=most).contains(bytes))
        .collect()
}

/// The line of a policy.
#[derive(Clone, Debug)]
pub struct Line {
    /// The policy.
    pub name: String,
    /// Memory in bytes, and the fraction of requests that missed.
    pub points: Vec<(u64, f64)>,
}

/// Draws the curve. `show` formats a memory size.
pub fn draw(title: &str, lines: &[Line], show: impl Fn(u64) -> String) -> String {
    let memories: Vec<u64> = lines
        .first()
        .map_or_else(Vec::new, |line| line.points.iter().map(|point| point.0).collect());
    let (least, most) =
        (*memories.first().unwrap_or(&1) as f64, *memories.last().unwrap_or(&2) as f64);
    let span = (most / least).ln().max(f64::EPSILON);
    let x = |bytes: u64| LEFT + (WIDTH - LEFT - RIGHT) * ((bytes as f64 / least).ln() / span);
    let y = |misses: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - misses);
    let mut svg = String::new();
    let mut put =
        |text: std::fmt::Arguments<'_>| svg.write_fmt(text).expect("a string takes everything");
    put(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape(title)
    ));
    for tenth in (0..=10).step_by(2) {
        let (at, right) = (y(f64::from(tenth) / 10.0), WIDTH - RIGHT);
        put(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n"
        ));
        put(format_args!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} %</text>\n",
            LEFT - 8.0,
            at + 4.0,
            tenth * 10
        ));
    }
    for bytes in &memories {
        let (at, below) = (x(*bytes), HEIGHT - BOTTOM + 18.0);
        put(format_args!(
            "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>\n",
            escape(&show(*bytes))
        ));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    put(format_args!(
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">memory</text>\n",
        HEIGHT - 14.0
    ));
    for (at, line) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let points: Vec<_> = line
            .points
            .iter()
            .map(|(bytes, misses)| format!("{:.1},{:.1}", x(*bytes), y(*misses)))
            .collect();
        put(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n",
            points.join(" ")
        ));
        let (side, row) = (WIDTH - RIGHT + 12.0, TOP + 14.0 + 18.0 * at as f64);
        put(format_args!(
            "<text x=\"{side}\" y=\"{row}\" fill=\"{colour}\">{}</text>\n",
            escape(&line.name)
        ));
    }
    put(format_args!("</svg>\n"));
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_keeps_to_possible_cache_sizes() {
        let memories = |bytes, most| memories_between(bytes, 64 << 10, most);
        assert_eq!(memories(6 << 20, u64::MAX).len(), 9);
        assert_eq!(memories(64 << 10, u64::MAX), [64 << 10, 128 << 10, 256 << 10]);
        assert!(memories(100, 1000).is_empty());
        assert_eq!(memories(u64::MAX, u64::MAX).last(), Some(&u64::MAX));
        assert_eq!(memories(8 << 30, 16 << 30).last(), Some(&(16 << 30)));
    }

    #[test]
    fn each_policy_has_a_line() {
        let line = |name: &str| Line {
            name: name.to_owned(),
            points: vec![(1024, 0.9), (2048, 0.5), (4096, 0.1)],
        };
        let svg = draw("a < b & c", &[line("s3-fifo"), line("lru")], |bytes| format!("{bytes} B"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(
            svg.contains("a &lt; b &amp; c") && svg.contains("2048 B") && svg.ends_with("</svg>\n")
        );
    }
}
