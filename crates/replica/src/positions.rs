//! The search for the end of numbered objects, without a list.

/// The last position that exists, if all before it do; 0 if there is none. Probes exponentially
/// from `hint`, then in halves.
pub(crate) fn find_end<E>(
    hint: u64,
    mut exists: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    // `low` exists (or is 0), `high` does not.
    let (mut low, mut high, mut step) = (0, None, 1);
    if hint > 0 && exists(hint)? {
        low = hint;
    } else if hint > 0 {
        high = Some(hint);
    }
    match high {
        None => {
            while exists(low.saturating_add(step))? {
                low = low.saturating_add(step);
                step = step.saturating_mul(2);
            }
            high = Some(low.saturating_add(step));
        }
        Some(_) => {
            let mut at = hint;
            while at > 0 {
                at = at.saturating_sub(step);
                if at == 0 || exists(at)? {
                    low = at;
                    break;
                }
                high = Some(at);
                step = step.saturating_mul(2);
            }
        }
    }
    let mut high = high.unwrap_or(low + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if exists(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

/// The first position that exists, if all from there to `known` do. Probes exponentially from
/// `known` downward, then in halves.
pub(crate) fn find_first<E>(
    known: u64,
    mut exists: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    // `high` exists, `low` does not.
    let (mut low, mut high, mut step) = (0, known, 1);
    while high > 1 {
        let at = high.saturating_sub(step).max(1);
        match exists(at)? {
            true => (high, step) = (at, step.saturating_mul(2)),
            false => {
                low = at;
                break;
            }
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if exists(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_from_any_hint_with_few_questions() {
        for end in [0_u64, 1, 2, 3, 7, 64, 1000, 1 << 20] {
            for hint in
                [0, 1, 2, end / 2, end.saturating_sub(1), end, end + 1, 2 * end + 9, 1 << 40]
            {
                let mut questions = 0;
                let exists = |position| {
                    questions += 1;
                    Ok::<_, ()>((1..=end).contains(&position))
                };
                assert_eq!(find_end(hint, exists), Ok(end), "hint {hint}");
                let distance = hint.abs_diff(end).max(1);
                assert!(questions <= 3 + 2 * (distance.ilog2() + 1), "{questions}: {hint} {end}");
            }
        }
    }

    #[test]
    fn the_first_kept_position_is_found_with_few_questions() {
        for (first, known) in [(1_u64, 2), (1, 1000), (5, 6), (999, 1000), (1, 1 << 20)] {
            let mut questions = 0;
            let exists = |position| {
                questions += 1;
                Ok::<_, ()>((first..=known).contains(&position))
            };
            assert_eq!(find_first(known, exists), Ok(first));
            assert!(questions <= 2 * (known.ilog2() + 2), "{questions}: {first} {known}");
        }
    }
}
