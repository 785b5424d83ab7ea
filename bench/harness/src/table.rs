//! Tables for people: columns as wide as necessary, numbers right-aligned.

/// Prints rows under a head.
pub(crate) fn print(head: &[&str], rows: &[Vec<String>]) {
    println!("{}", render(head, rows));
}

fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(i, title)| {
            rows.iter()
                .map(|row| row[i].chars().count())
                .max()
                .unwrap_or(0)
                .max(title.chars().count())
        })
        .collect();
    let mut lines = vec![line(&widths, head, rows)];
    lines.push(widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>().join("  "));
    lines.extend(rows.iter().map(|row| line(&widths, row, rows)));
    lines.join("\n")
}

fn line<T: AsRef<str>>(widths: &[usize], cells: &[T], rows: &[Vec<String>]) -> String {
    let padded = widths.iter().zip(cells).enumerate().map(|(column, (&width, cell))| {
        let cell = cell.as_ref();
        if is_numeric(rows, column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    });
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

fn is_numeric(rows: &[Vec<String>], column: usize) -> bool {
    rows.iter().all(|row| row[column].starts_with(|c: char| c.is_ascii_digit() || c == '-'))
}

/// A number with an appropriate number of digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_aligned_and_numbers_right_aligned() {
        let rows =
            vec![vec!["scan".to_owned(), "7".to_owned()], vec!["r".to_owned(), "1200".to_owned()]];
        assert_eq!(
            render(&["what", "ns"], &rows),
            "what    ns\n----  ----\nscan     7\nr     1200"
        );
    }
}
