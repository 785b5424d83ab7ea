//! Holds of the log in a store that several processes share.

use std::cell::Cell;
use std::rc::Rc;

use plimsoll::borders::{Border, at_next};
use plimsoll::{Db, Glsn, Retention};

use crate::members::{default, options, verify};

/// Overwrites a few keys until the log has many segments, and lets `other` apply that.
fn fill(keeper: &Db, other: &Db) {
    for round in 0..200u64 {
        keeper.put(&default(keeper), (round % 10).to_be_bytes(), vec![7; 3000]).unwrap();
    }
    keeper.flush().unwrap();
    other.get(&default(other), "key").unwrap();
    other.step().unwrap();
}

#[test]
fn a_held_part_of_the_log_stays_beside_a_removal_that_began_before() {
    for border in [Border::TrimAsked, Border::TrimChosen] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let open = || {
            let options = options().segment_bytes(64 << 10).memtable_bytes(64 << 10);
            let options = options.retention(Retention::Latest).background(false);
            Db::open(&path, options).unwrap()
        };
        let (keeper, other) = (open(), open());
        fill(&keeper, &other);
        let found = Rc::new(Cell::new(None));
        let (holding, place) = (other.clone(), Rc::clone(&found));
        at_next(border, move || {
            let hold = holding.hold_log(Glsn(1)).unwrap();
            place.set(Some((hold, holding.log().bounds().first)));
        });
        let first = keeper.log().trim(keeper.newest()).unwrap();
        let (hold, held) = found.take().expect("the trim crosses the border");
        assert!(first <= held, "{border:?}: held from {held} on, freed below {first}");
        fill(&keeper, &other);
        assert_eq!(keeper.log().trim(keeper.newest()).unwrap(), first, "{border:?}");
        drop(hold);
        other.step().unwrap();
        assert!(keeper.log().trim(keeper.newest()).unwrap() > first, "{border:?}");
        drop((keeper, other));
        verify(&path);
    }
}

#[test]
fn a_member_that_holds_the_log_shows_what_it_has_applied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let open = || Db::open(&path, options().background(false)).unwrap();
    let (one, two) = (open(), open());
    let _hold = two.hold_log(Glsn(1)).unwrap();
    fill(&one, &two);
    let applied: Vec<Glsn> = one.members().unwrap().iter().map(|member| member.applied).collect();
    assert_eq!(applied[1], one.newest(), "{applied:?}");
}
