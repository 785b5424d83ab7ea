//! The report: one self-contained HTML file, readable in light and dark mode.

use std::fmt::Write as _;

use super::run::{Ratio, Run};
use super::svg::{self, Series};
use super::words::{micros, short};
use super::{OURS, twelve};
use crate::sizes::parse_size;

const STYLE: &str = "
:root { color-scheme: light dark; --page: #fdfdfc; --text: #1f2328; --faint: #d5d8dc; --good: #1a7f37; --bad: #b3261e;
  --c0: #0b5fa5; --c1: #5aa0d8; --c2: #c2571a; --c3: #6b7f1e; --c4: #8a3fa0; --c5: #b58900; --c6: #4d6570; --c7: #a0304f }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --text: #e3e6ea; --faint: #3a4048; --good: #57c877; --bad: #ff8a80;
  --c0: #5db0f5; --c1: #a5d0f5; --c2: #f0965a; --c3: #b6cc5c; --c4: #cf8fe0; --c5: #e6c04f; --c6: #9fb4bf; --c7: #ee8aa6 } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; margin: .5rem 0 }
.wide { overflow-x: auto } td, th { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap }
td:first-child, th:first-child { text-align: left } .win { color: var(--good) } .loss { color: var(--bad); font-weight: 600 }
.mean td { border-top: 2px solid var(--text); font-weight: 600 } h2 { margin-top: 2.5rem } h3 { font-size: 14px; margin: 1rem 0 .2rem }
svg { width: 100%; height: auto } svg text { fill: var(--text); font-size: 12px } .grid { stroke: var(--faint) }
.limit { stroke: var(--bad); stroke-dasharray: 6 4 } .key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 1em }
";

/// The whole page.
pub(super) fn page(run: &Run) -> String {
    let mode = run.any_setting("mode").unwrap_or("?");
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Plimsoll: the yardstick</title><style>{STYLE}</style></head><body>\n<h1>The yardstick</h1>\n\
         <p>{}, {}, commit {}, {mode} run, limit {}.{}</p>\n",
        run.machine,
        run.date,
        run.commits(),
        run.any_setting("limit").unwrap_or("?"),
        warnings(run),
    );
    out += &key(run);
    for ours in OURS {
        out += &overview(run, ours);
    }
    for row in run.rows() {
        out += &section(run, row);
    }
    out + "</body></html>\n"
}

fn warnings(run: &Run) -> String {
    let mut out = String::new();
    if run.any_setting("mode") == Some("quick") {
        out += " <strong>Quick: small sizes and short slices. Not to be published.</strong>";
    }
    if run.any_setting("cgroup") == Some("refused") {
        out += " <strong>No hard memory limit was permitted: memory is not equal.</strong>";
    }
    if let Some(busy) = run.busy_before().filter(|busy| *busy > 0.1) {
        write!(
            out,
            " <strong>The machine was {:.0} % busy with other work.</strong>",
            busy * 100.0
        )
        .expect("writing to a string");
    }
    out
}

/// All contestants, each with its colour for the whole page.
pub(super) fn contestants(run: &Run) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for row in run.rows() {
        all.extend(
            run.contestants(row).into_iter().filter(|name| !all.contains(name)).collect::<Vec<_>>(),
        );
    }
    all
}

fn color(run: &Run, contestant: &str) -> usize {
    contestants(run).iter().position(|name| *name == contestant).unwrap_or(0) % 8
}

fn key(run: &Run) -> String {
    let one = |name: &&str| {
        format!(
            "<span class=\"key\" style=\"background:var(--c{})\"></span>{name}",
            color(run, name)
        )
    };
    format!("<p>{}</p>\n", contestants(run).iter().map(one).collect::<String>())
}

fn peers(run: &Run) -> Vec<&str> {
    let is_peer = |name: &&str| {
        !OURS.contains(name) && twelve().iter().any(|row| run.contestants(row).contains(name))
    };
    contestants(run).into_iter().filter(is_peer).collect()
}

/// Our rate over each peer's, row by row, and the mean.
fn overview(run: &Run, ours: &str) -> String {
    let peers = peers(run);
    if !contestants(run).contains(&ours) || peers.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "<h2>{ours} over each peer</h2>\n<p>Rate over rate, with the 95 % interval where there were enough pairs; above 1 is faster.</p>\n\
         <div class=\"wide\"><table><tr><th>row</th>{}</tr>\n",
        peers.iter().map(|peer| format!("<th>{peer}</th>")).collect::<String>()
    );
    for row in run.rows() {
        let cell = |peer: &&str| match run.ratio(row, ours, peer) {
            Some(ratio) => format!("<td class=\"{}\">{}</td>", verdict(ratio.median), shown(ratio)),
            None if run.contestants(row).contains(peer) => {
                format!("<td>{}</td>", run.failure(row, peer))
            }
            None => "<td></td>".to_owned(),
        };
        let cells: String = peers.iter().map(cell).collect();
        writeln!(out, "<tr><td>{row}</td>{cells}</tr>").expect("writing to a string");
    }
    let mean = |peer: &&str| match run.mean(&twelve(), ours, peer) {
        Some(mean) => format!(
            "<td class=\"{}\">{:.2} ({} rows)</td>",
            verdict(mean.ratio),
            mean.ratio,
            mean.rows
        ),
        None => "<td>–</td>".to_owned(),
    };
    let means: String = peers.iter().map(mean).collect();
    writeln!(
        out,
        "<tr class=\"mean\"><td>geometric mean of the twelve</td>{means}</tr></table></div>"
    )
    .expect("writing to a string");
    out
}

fn verdict(ratio: f64) -> &'static str {
    if ratio >= 1.0 { "win" } else { "loss" }
}

fn shown(ratio: Ratio) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} ({low:.2} to {high:.2})", ratio.median),
        None => format!("{:.2}", ratio.median),
    }
}

fn section(run: &Run, row: &str) -> String {
    let limit = run.setting(row, "limit").unwrap_or("0");
    let mut out = format!(
        "<h2>{row}</h2>\n<p>limit {limit}, cgroup {}, {} rows of {} B values, commits {}</p>\n",
        run.setting(row, "cgroup").unwrap_or("–"),
        run.setting(row, "rows").unwrap_or("–"),
        run.setting(row, "value_bytes").unwrap_or("–"),
        run.setting(row, "commits").unwrap_or("–"),
    );
    let names = run.contestants(row);
    let rate =
        |name: &str| run.value(row, name, "per_second").ok_or_else(|| run.failure(row, name));
    out += "<h3>operations a second</h3>\n";
    out += &svg::bars(&series(run, &names, |name| Some(rate(name))));
    let latencies = series(run, &names, |name| {
        let of = |metric| run.value(row, name, metric);
        Some([of("p50_ns")?, of("p99_ns")?, of("p999_ns")?, of("max_ns")?])
    });
    if !latencies.is_empty() {
        out += "\n<h3>latency: median, 99 %, 99.9 %, longest</h3>\n";
        out += &svg::latencies(&latencies);
    }
    let memory =
        series(run, &names, |name| Some(run.memory(row, name)).filter(|points| points.len() > 1));
    if !memory.is_empty() {
        out += "\n<h3>memory over time: RssAnon + RssShmem + page tables</h3>\n";
        out += &svg::memory(&memory, parse_size(limit).unwrap_or(0) as f64);
    }
    out + "\n" + &numbers(run, row, &names)
}

pub(super) fn series<'run, T>(
    run: &Run,
    names: &[&'run str],
    what: impl Fn(&'run str) -> Option<T>,
) -> Vec<Series<'run, T>> {
    names
        .iter()
        .filter_map(|name| Some(Series { name, color: color(run, name), what: what(name)? }))
        .collect()
}

fn numbers(run: &Run, row: &str, names: &[&str]) -> String {
    let mut out = "<div class=\"wide\"><table><tr><th></th><th>per second</th><th>p50</th><th>p99</th><th>p99.9</th><th>max</th>\
         <th>CPU s</th><th>peak MiB</th><th>cgroup MiB</th><th>read MiB</th><th>written MiB</th><th>on disk MiB</th><th></th></tr>\n"
        .to_owned();
    for name in names {
        let of = |metric: &str| run.value(row, name, metric);
        let time = |metric: &str| {
            format!("<td>{}</td>", of(metric).map_or_else(|| "–".to_owned(), micros))
        };
        let mebibytes = |metric| {
            format!(
                "<td>{}</td>",
                of(metric).map_or_else(|| "–".to_owned(), |b| format!("{:.0}", b / 1_048_576.0))
            )
        };
        let rate = of("per_second").map_or_else(|| run.failure(row, name).to_owned(), short);
        let cpu =
            of("cpu_seconds").map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.1}"));
        let is_cut = of("cut").is_some_and(|cut| cut > 0.0);
        writeln!(
            out,
            "<tr><td>{name}</td><td>{rate}</td>{}<td>{cpu}</td>{}<td>{}</td></tr>",
            ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(time).concat(),
            [
                "peak_line_bytes",
                "cgroup_peak_bytes",
                "device_read_bytes",
                "device_written_bytes",
                "disk_bytes"
            ]
            .map(mebibytes)
            .concat(),
            if is_cut { "cut: the rate of its first part" } else { "" },
        )
        .expect("writing to a string");
    }
    out + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::EXAMPLE;
    use super::*;

    /// Checks that all tags are closed in order.
    fn assert_well_formed(page: &str) {
        let mut open = Vec::new();
        for tag in page.split('<').skip(1) {
            let inner =
                tag.split_once('>').unwrap_or_else(|| panic!("a tag without an end: {tag}")).0;
            let name = inner.trim_start_matches('/').split([' ', '/']).next().unwrap();
            match inner {
                _ if inner.ends_with('/') || ["!doctype", "meta"].contains(&name) => {}
                _ if inner.starts_with('/') => assert_eq!(open.pop(), Some(name), "{inner}"),
                _ => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_report_is_well_formed_and_needs_nothing_else() {
        let page = page(&Run::parse(EXAMPLE).unwrap());
        assert_well_formed(&page);
        assert!(
            !page.contains("http")
                && !page.contains("src=")
                && !page.contains("NaN")
                && !page.contains("inf")
        );
        assert_eq!(page.matches("<polyline").count(), 1);
    }

    #[test]
    fn losses_and_failures_are_shown_like_wins() {
        let page = page(&Run::parse(EXAMPLE).unwrap());
        assert!(page.contains("<td class=\"win\">4.00 (3.50 to 4.50)</td>"));
        assert!(page.contains("<td class=\"loss\">0.25</td>"));
        assert!(page.contains("<td>out of memory</td>") && page.contains("25 % busy"));
    }
}
