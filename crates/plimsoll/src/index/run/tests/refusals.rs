//! Tests of refusals: by the budget, and by the builder.

use super::*;

#[test]
fn a_budget_refusal_at_any_point_is_an_error_and_leaks_nothing() {
    let mut random = Random::new(70);
    let budget = budget();
    let model = random_model(&mut random, Shape::Mixed, 400);
    let pool = pool(&budget);
    let table = table_of(&budget, &pool, &model);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let dir = Path::new("index");
    disk.create_dir(dir).unwrap();
    let mut succeeded = 0;
    for n in 0..100 {
        pool.clear();
        let free = budget.free_bytes();
        budget.fail_after(n);
        let done = use_all(&budget, &disk, dir, &table, &model);
        budget.fail_after(u64::MAX);
        match done {
            Ok(()) => succeeded += 1,
            Err(error) => assert!(matches!(error, Error::OutOfBudget(_)), "{error}"),
        }
        assert_eq!(budget.free_bytes(), free, "after {n} reservations");
        assert_eq!(disk.list(dir).unwrap(), [], "after {n} reservations");
    }
    assert!(succeeded > 50 && succeeded < 95, "{succeeded} of 100 succeeded");
}

fn use_all(
    budget: &Budget,
    disk: &Arc<dyn Disk>,
    dir: &Path,
    table: &Table,
    model: &Model,
) -> Result<()> {
    let sink = RunFileSink::create(disk, dir, 5, LOG, budget)?;
    let mut builder = TableBuilder::new(sink, budget, false)?;
    versions(model).try_for_each(|version| builder.add(&version))?;
    drop(builder.finish()?);
    check_table(table, budget, &mut |_| ())?;
    let mut cursor = RunCursor::new([table.clone()].into(), Feed::Private(budget.clone()));
    cursor.seek_first()?;
    while cursor.current().is_some() {
        cursor.next()?;
    }
    Ok(())
}

#[test]
#[should_panic(expected = "newest first")]
fn versions_out_of_order_are_refused() {
    let budget = budget();
    let mut builder = TableBuilder::new(Pages::default(), &budget, false).unwrap();
    builder.add(&Version { key: b"0001k", glsn: Glsn(4), stored: Stored::Deleted }).unwrap();
    let _ = builder.add(&Version { key: b"0001k", glsn: Glsn(5), stored: Stored::Deleted });
}
