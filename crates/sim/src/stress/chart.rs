//! Draws memory and budget over time, as SVG and as text.

use std::fmt::Write;

/// A measurement of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The time, in milliseconds from the beginning.
    pub millis: u64,
    /// Its memory.
    pub resident_bytes: u64,
    /// Its budget.
    pub budget_bytes: u64,
}

impl Sample {
    /// The bytes above the budget; 0 if there are none.
    pub fn above_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.budget_bytes)
    }
}

const WIDTH: u64 = 1000;
const HEIGHT: u64 = 300;
const MARGIN: u64 = 50;

/// The samples in at most `columns` columns; each shows the sample nearest to the budget, or the
/// most above it.
fn columns(samples: &[Sample], columns: u64) -> Vec<Sample> {
    let end = samples.last().map_or(0, |sample| sample.millis) + 1;
    let mut shown: Vec<Option<Sample>> = vec![None; columns as usize];
    for sample in samples {
        let column = &mut shown[(sample.millis * columns / end) as usize];
        let nearness =
            |sample: &Sample| sample.resident_bytes as i128 - i128::from(sample.budget_bytes);
        if column.is_none_or(|known| nearness(&known) < nearness(sample)) {
            *column = Some(*sample);
        }
    }
    shown.into_iter().flatten().collect()
}

/// A drawing of budget and memory over time.
pub fn svg(samples: &[Sample]) -> String {
    let shown = columns(samples, WIDTH);
    let end = samples.last().map_or(1, |sample| sample.millis).max(1);
    let most = samples
        .iter()
        .map(|sample| sample.resident_bytes.max(sample.budget_bytes))
        .max()
        .unwrap_or(1)
        .max(1);
    let x = |sample: &Sample| MARGIN + sample.millis * WIDTH / end;
    let y = |bytes: u64| MARGIN + HEIGHT - bytes * HEIGHT / most;
    let line = |bytes: fn(&Sample) -> u64, colour: &str| {
        let points = shown.iter().fold(String::new(), |mut points, sample| {
            let _ = write!(points, "{},{} ", x(sample), y(bytes(sample)));
            points
        });
        format!("<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"/>\n", points.trim_end())
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n",
        WIDTH + 2 * MARGIN,
        HEIGHT + 2 * MARGIN
    );
    for quarter in 0..=4 {
        let bytes = most * quarter / 4;
        let _ = writeln!(
            out,
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/><text \
             x=\"4\" y=\"{at}\">{} MiB</text>",
            MARGIN + WIDTH,
            bytes >> 20,
            at = y(bytes)
        );
    }
    out += &line(|sample| sample.budget_bytes, "#999");
    out += &line(|sample| sample.resident_bytes, "#06c");
    let _ = write!(
        out,
        "<text x=\"{MARGIN}\" y=\"30\">grey: the budget of the moment; blue: RssAnon and page \
         tables of the process; {} s</text>\n</svg>\n",
        end / 1000
    );
    out
}

/// The same for a terminal: a row for each span of time, with the most memory and the budget then.
pub fn text(samples: &[Sample], rows: u64) -> String {
    const BAR: u64 = 60;
    let most = samples
        .iter()
        .map(|sample| sample.resident_bytes.max(sample.budget_bytes))
        .max()
        .unwrap_or(1)
        .max(1);
    columns(samples, rows).iter().fold(String::new(), |mut out, sample| {
        let column = |bytes: u64| (bytes * BAR / most) as usize;
        let mut bar = format!(
            "{:<width$}",
            "#".repeat(column(sample.resident_bytes)),
            width = BAR as usize + 1
        );
        let at = column(sample.budget_bytes);
        bar.replace_range(at..=at, "|");
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(
            out,
            "{:>6} s {bar} {:>7.1} of {:>7.1} MiB",
            sample.millis / 1000,
            mebibytes(sample.resident_bytes),
            mebibytes(sample.budget_bytes)
        );
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(millis: u64, resident: u64, budget: u64) -> Sample {
        Sample { millis, resident_bytes: resident << 20, budget_bytes: budget << 20 }
    }

    #[test]
    fn column_shows_the_sample_closest_to_the_budget() {
        let samples = [sample(0, 10, 16), sample(1, 18, 16), sample(2, 30, 64), sample(100, 1, 16)];
        assert_eq!(columns(&samples, 2), [samples[1], samples[3]]);
        assert_eq!(samples[1].above_bytes(), 2 << 20);
        assert_eq!(samples[2].above_bytes(), 0);
    }

    #[test]
    fn chart_draws_both_lines_and_prints_the_budget() {
        let samples = [sample(0, 10, 16), sample(1000, 14, 32), sample(2000, 31, 32)];
        let drawing = svg(&samples);
        assert_eq!(drawing.matches("<polyline").count(), 2);
        assert!(drawing.contains("32 MiB") && drawing.ends_with("</svg>\n"), "{drawing}");
        let rows = text(&samples, 3);
        assert_eq!(rows.lines().count(), 3);
        assert!(rows.lines().all(|row| row.contains('|')), "{rows}");
        assert!(rows.contains("31.0 of    32.0 MiB"), "{rows}");
        assert_eq!(text(&[], 5), "");
    }
}
