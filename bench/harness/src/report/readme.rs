//! The table of the performance page, between two marker comments.

use anyhow::{Context as _, Result};

use super::run::Run;
use super::words::short;
use super::{OURS, twelve};

const BEGIN: &str = "<!-- yardstick: made by `bench readme` -->";
const END: &str = "<!-- end of yardstick -->";

/// The text with the part between the markers replaced.
pub(super) fn replaced(text: &str, run: &Run) -> Result<String> {
    let missing = || format!("there is no line `{BEGIN}` followed by `{END}`");
    let (before, rest) = text.split_once(BEGIN).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", table(run)))
}

/// Rates of all contestants, and in brackets Plimsoll's relative to a peer's.
fn table(run: &Run) -> String {
    let names = names(run);
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = format!(
        "Measured on {} at commit {} ({} run of {}): limit {} for the whole process, page cache included; operations a second,\n\
         in brackets Plimsoll's rate over the peer's; the mean leaves out `pairs`. `bench/README.md` says what each row is.\n\n",
        run.machine,
        run.commits(),
        run.any_setting("mode").unwrap_or("?"),
        &run.date[..run.date.len().min(10)],
        run.any_setting("limit").unwrap_or("?"),
    );
    out += &line(std::iter::once("row").chain(names.iter().copied()).map(str::to_owned).collect());
    out += &line(
        std::iter::once("---").chain(names.iter().map(|_| "---:")).map(str::to_owned).collect(),
    );
    let is_measured = |row: &&str| names.iter().any(|name| cell(run, row, name) != "–");
    for row in run.rows().into_iter().filter(is_measured) {
        let cells = names.iter().map(|name| cell(run, row, name));
        out += &line(std::iter::once(row.to_owned()).chain(cells).collect());
    }
    for ours in OURS.iter().filter(|ours| names.contains(ours)) {
        let mean = |name: &&str| match run.mean(&twelve(), ours, name) {
            Some(mean) if mean.rows == twelve().len() => format!("**{:.2}**", mean.ratio),
            Some(mean) => format!("**{:.2}** ({} rows)", mean.ratio, mean.rows),
            None => String::new(),
        };
        out += &line(
            std::iter::once(format!("**{ours} over it, mean**"))
                .chain(names.iter().map(mean))
                .collect(),
        );
    }
    out
}

fn names(run: &Run) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in twelve() {
        let Some(row) = run.rows().into_iter().find(|known| *known == row) else { continue };
        names.extend(
            run.contestants(row)
                .into_iter()
                .filter(|name| !names.contains(name))
                .collect::<Vec<_>>(),
        );
    }
    names
}

fn cell(run: &Run, row: &str, name: &str) -> String {
    let Some(rate) = run.value(row, name, "per_second") else {
        return run.failure(row, name).to_owned();
    };
    let cut = if run.value(row, name, "cut") == Some(1.0) { "≤ " } else { "" };
    match run.ratio(row, OURS[0], name) {
        Some(ratio) => format!("{cut}{} ({:.2})", short(rate), ratio.median),
        None => format!("{cut}{}", short(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::EXAMPLE;
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let run = Run::parse(EXAMPLE).unwrap();
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let once = replaced(&text, &run).unwrap();
        assert!(
            once.starts_with("before\n") && once.ends_with("\nafter\n") && !once.contains("old")
        );
        assert_eq!(replaced(&once, &run).unwrap(), once);
        assert!(replaced("no markers", &run).is_err());
    }

    #[test]
    fn the_table_has_rates_ratios_and_failures() {
        let table = table(&Run::parse(EXAMPLE).unwrap());
        assert!(table.contains("| get-zipf | 4.00 M | 1.00 M (4.00) |"), "{table}");
        assert!(table.contains("| scan-full | 1.00 k | ≤ 4.00 k (0.25) |"), "{table}");
        assert!(table.contains("| load-random | 5.00 | out of memory |"), "{table}");
        assert!(table.contains("| **plimsoll over it, mean** |  | **1.00** (2 rows) |"), "{table}");
    }
}
