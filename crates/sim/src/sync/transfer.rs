//! Pushes and fetches, undisturbed or with a fault on the way.

use std::cell::RefCell;
use std::rc::Rc;

use plimsoll::borders::{Border, at_nth, forget};
use plimsoll::forging::{Forgery, arm, disarm};
use plimsoll::{Error, Glsn, InvalidInput, Moved};
use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::sync::doubt::{Transfer, UnknownEffect};
use crate::sync::{Driver, done};

/// A push or a fetch.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    from: usize,
    to: usize,
    /// The branch there, and the branch that receives its commits.
    branch: String,
    into: String,
    /// Whether the receiving branch may lose commits.
    is_forced: bool,
}

/// A disturbance of a transfer.
enum TransferFault {
    None,
    /// A fault of this store, because of which the transfer may fail.
    Fault(usize),
    /// A commit of a store on a branch.
    Commit(CommitDuringTransfer),
    /// A commit is altered in transit.
    Forged,
    /// Another transfer to the receiving store.
    Transfer(Beside),
}

/// A transfer of the same commits during a transfer.
struct Beside {
    into: String,
    done: Rc<RefCell<Option<plimsoll::Result<Moved>>>>,
}

/// A commit during a transfer.
struct CommitDuringTransfer {
    store: usize,
    branch: String,
    done: Rc<RefCell<Option<plimsoll::Result<Glsn>>>>,
}

impl Driver {
    pub(super) fn transfer(&mut self, number: usize, random: &mut Random) -> Outcome {
        let count = self.stores.len() as u64;
        let other = (number + 1 + random.below(count - 1) as usize) % self.stores.len();
        let branch = self.stores[number].some_branch(random);
        match random.below(8) {
            0..4 => self.exchange(
                &Exchange {
                    from: number,
                    to: other,
                    branch: branch.clone(),
                    into: branch,
                    is_forced: random.below(4) == 0,
                },
                random,
            ),
            4 => {
                let into = format!("s{number}/{branch}");
                self.fetch(other, number, (&branch, &into), random)
            }
            _ => self.fetch(other, number, (&branch, &branch), random),
        }
    }

    /// Fetches a branch of the store `from`.
    pub(super) fn fetch(
        &mut self,
        to: usize,
        from: usize,
        (branch, into): (&str, &str),
        random: &mut Random,
    ) -> Outcome {
        let (branch, into) = (branch.to_owned(), into.to_owned());
        self.exchange(&Exchange { from, to, branch, into, is_forced: true }, random)
    }

    fn exchange(&mut self, exchange: &Exchange, random: &mut Random) -> Outcome {
        let disturbance = self.disturb(exchange, random)?;
        let is_disturbed = !matches!(disturbance, TransferFault::None);
        let is_alone =
            !matches!(disturbance, TransferFault::Commit(_) | TransferFault::Transfer(_));
        let is_done = self.try_exchange(exchange, disturbance, random)?;
        let is_again = match is_done {
            // There is nothing to transfer any more.
            true => is_alone && random.below(4) == 0,
            false => is_disturbed && random.below(2) == 0,
        };
        if !is_again {
            return Ok(());
        }
        self.recover(exchange.from, random)?;
        self.recover(exchange.to, random)?;
        [exchange.from, exchange.to].iter().for_each(|it| self.arm_nothing(*it));
        let before = self.stores[exchange.to].branches.get(&exchange.into).copied();
        let ended = self.try_exchange(exchange, TransferFault::None, random)?;
        let now = self.stores[exchange.to].branches.get(&exchange.into).copied();
        ensure(!is_done || (ended && before == now), || {
            format!("{exchange:?}, repeated, has moved the branch from {before:?} to {now:?}")
        })
    }

    fn arm_nothing(&self, number: usize) {
        self.stores[number].world.disk.cut_power_at_change(u64::MAX);
    }

    /// Chooses what happens during a transfer.
    fn disturb(&mut self, exchange: &Exchange, random: &mut Random) -> Outcome<TransferFault> {
        let victim = if random.below(3) == 0 { exchange.from } else { exchange.to };
        let (db, disk) = (self.stores[victim].db().clone(), self.stores[victim].world.disk.clone());
        match random.below(16) {
            0..3 => {
                let most = [16, 80][random.below(2) as usize];
                disk.cut_power_at_change(1 + random.below(most));
            }
            3 | 4 => {
                db.drop_caches();
                db.drop_pages();
                disk.fail_read(1 + random.below(12));
            }
            5 | 6 => db.refuse_after(random.below(60), 1 + random.below(3)),
            7 => disk.fail_sync(1 + random.below(6)),
            8..11 => {
                self.arm_nothing(exchange.from);
                self.arm_nothing(exchange.to);
                return self.nested_commit(exchange, victim, random).map(TransferFault::Commit);
            }
            11 => {
                let forgery = Forgery::ALL[random.below(Forgery::ALL.len() as u64) as usize];
                arm(1 + random.below(4), forgery);
                return Ok(TransferFault::Forged);
            }
            12 | 13 => {
                self.arm_nothing(exchange.from);
                self.arm_nothing(exchange.to);
                return Ok(TransferFault::Transfer(self.transfer_beside(exchange, random)));
            }
            _ => return Ok(TransferFault::None),
        }
        Ok(TransferFault::Fault(victim))
    }

    /// Makes the receiving store fetch the branch during the transfer, to the same or another one.
    fn transfer_beside(&self, exchange: &Exchange, random: &mut Random) -> Beside {
        let ours = self.stores[exchange.from].branches.get(&exchange.branch).copied().flatten();
        let theirs = self.stores[exchange.to].branches.get(&exchange.into).copied().flatten();
        // If this does not hold, a push may be refused or not, depending on which of the two
        // transfers is first.
        let is_decided = exchange.is_forced || self.graph.contains(ours, theirs);
        let into = match is_decided && random.below(2) == 0 {
            true => exchange.into.clone(),
            false => format!("beside/{}", random.below(2)),
        };
        let stores = [exchange.from, exchange.to].map(|number| self.stores[number].db().clone());
        let (branch, name, done) =
            (exchange.branch.clone(), into.clone(), Rc::new(RefCell::new(None)));
        let result = Rc::clone(&done);
        at_nth(Border::MomentAsked, 1 + random.below(80), move || {
            let [from, to] = stores;
            // Another thread would wait until the change of the branch has ended. This thread would
            // wait for ever, because it runs within that change.
            if to.is_changing_branches() {
                return;
            }
            *result.borrow_mut() = Some(to.fetch_from(&from, &branch, &name));
        });
        Beside { into, done }
    }

    /// Adds the transfer that was made during a transfer to the model. Returns whether there was
    /// one.
    fn absorb_beside(
        &mut self,
        exchange: &Exchange,
        disturbance: &TransferFault,
        ours: Option<usize>,
    ) -> Outcome<bool> {
        let TransferFault::Transfer(Beside { into, done: result }) = disturbance else {
            return Ok(false);
        };
        let Some(moved) = result.take() else { return Ok(false) };
        match moved {
            Err(Error::InvalidInput(why)) => {
                let is_excused = match why {
                    InvalidInput::NoBranch { .. } => true,
                    InvalidInput::StateNotRetained { .. } | InvalidInput::HistoryTrimmed { .. } => {
                        !self.keeps_all()
                    }
                    _ => false,
                };
                ensure(is_excused, || format!("a transfer beside another one failed: {why}"))?;
            }
            moved => {
                let moved = done("a transfer beside another one", moved)?;
                if ours.is_some() {
                    same("the end of a transfer beside", &moved.to, &self.graph.id(ours))?;
                    self.stores[exchange.to].branches.insert(into.clone(), ours);
                }
                let had = self.graph.contained(ours);
                self.stores[exchange.to].had.extend(had.iter());
            }
        }
        Ok(true)
    }

    /// Has a store commit during the transfer.
    fn nested_commit(
        &mut self,
        exchange: &Exchange,
        store: usize,
        random: &mut Random,
    ) -> Outcome<CommitDuringTransfer> {
        let name = if store == exchange.to { &exchange.into } else { &exchange.branch };
        let branch = match self.stores[store].branches.contains_key(name) && random.below(3) > 0 {
            true => name.clone(),
            false => self.stores[store].some_branch(random),
        };
        let metadata = self.metadata();
        let (handle, keyspace) =
            (self.stores[store].branch(&branch)?, self.stores[store].keyspace(0)?);
        let result = Rc::new(RefCell::new(None));
        let (into, key) = (Rc::clone(&result), 1 + random.below(8) as u8);
        at_nth(Border::MomentAsked, 1 + random.below(80), move || {
            let mut tx = handle.begin();
            let put = tx.put(&keyspace, [key], &metadata).and_then(|()| tx.set_metadata(&metadata));
            *into.borrow_mut() = Some(put.and_then(|()| tx.commit()));
        });
        Ok(CommitDuringTransfer { store, branch, done: result })
    }

    /// Transfers; returns whether the receiving branch has all commits now.
    fn try_exchange(
        &mut self,
        exchange: &Exchange,
        disturbance: TransferFault,
        random: &mut Random,
    ) -> Outcome<bool> {
        let (from, to) = (exchange.from, exchange.to);
        let ours = self.stores[from].branches.get(&exchange.branch).copied();
        let theirs = self.stores[to].branches.get(&exchange.into).copied();
        let left = self.temporary(to)?;
        let transfer = Transfer {
            branch: exchange.into.clone(),
            before: theirs,
            wanted: ours.flatten(),
            merge: None,
        };
        self.stores[to].doubt = Some(UnknownEffect::Transfer(transfer.clone()));
        let (source, target) = (self.stores[from].db().clone(), self.stores[to].db().clone());
        let moved = match (exchange.branch == exchange.into, exchange.is_forced) {
            (true, false) => source.push_to(&target, &exchange.branch),
            (true, true) if random.below(2) == 0 => {
                source.push_forced_to(&target, &exchange.branch)
            }
            _ => target.fetch_from(&source, &exchange.branch, &exchange.into),
        };
        forget();
        let is_forged = disarm();
        drop((source, target));
        let is_hurt = self.heal(exchange, &disturbance, random)?;
        let is_settled = self.stores[to].doubt.take().is_none();
        self.resolve(from)?;
        self.resolve(to)?;
        if self.stores[from].is_down() || self.stores[to].is_down() {
            return Ok(false);
        }
        let is_beside = self.absorb_beside(exchange, &disturbance, ours.flatten())?;
        let amid = self.absorb_commit(exchange, disturbance, ours.flatten(), theirs.flatten())?;
        let what = || format!("{exchange:?} of {ours:?} to {theirs:?}, {amid:?}: {moved:?}");
        let is_right = match &moved {
            Ok(moved) => {
                let ended = self.ended(exchange, moved, (ours, theirs), (amid, is_beside));
                ended.map_err(|why| Failure::new(format!("{}: {}", what(), why.message)))?;
                !is_forged
            }
            Err(Error::Corrupt { .. }) if is_forged => true,
            Err(error) => is_hurt || self.may_fail(exchange, error, (ours, theirs), amid),
        };
        ensure(is_right, what)?;
        if moved.is_err() {
            // A temporary branch may have them.
            let had = self.graph.contained(ours.flatten());
            self.stores[to].had.extend(had.iter());
            let is_refused = matches!(&moved, Err(error) if is_not_fast_forward(error));
            if is_refused && amid.is_none() && !is_beside {
                same(format!("{}, branches left", what()), &self.temporary(to)?, &left)?;
            }
            match amid.filter(|(store, _)| *store == to) {
                Some((_, commit)) if self.is_on(exchange, to, commit) => {
                    let tip = self.tip(to, &exchange.into)?.flatten();
                    same(what(), &tip, &Some(commit))?;
                }
                _ if !is_settled => self.settle_transfer(to, &transfer)?,
                _ => {}
            }
        }
        self.check_all(to)?;
        self.check_commits(to, &exchange.into, random)?;
        Ok(moved.is_ok())
    }

    /// Ends all faults; opens stores again that cannot continue. Returns whether there was a fault.
    fn heal(
        &mut self,
        exchange: &Exchange,
        disturbance: &TransferFault,
        random: &mut Random,
    ) -> Outcome<bool> {
        let mut is_hurt = matches!(disturbance, TransferFault::Fault(_));
        for number in [exchange.from, exchange.to] {
            let store = &mut self.stores[number];
            let disk = store.world.disk.clone();
            is_hurt |= store.is_down();
            disk.fail_no_read();
            store.db().refuse_after(u64::MAX, 0);
            let is_victim =
                matches!(disturbance, TransferFault::Fault(victim) if *victim == number);
            let is_poisoned = is_victim
                && !disk.power_is_cut()
                && !disk.has_failure_to_come()
                && store.db().sync().is_err();
            disk.cancel_failures();
            if is_poisoned {
                // The writes that the failed sync did not save may be lost.
                disk.cut_power();
            }
            self.recover(number, random)?;
            self.arm_nothing(number);
        }
        Ok(is_hurt)
    }

    /// Adds the commit that was made during a transfer to the graph. Returns its store and itself.
    fn absorb_commit(
        &mut self,
        exchange: &Exchange,
        disturbance: TransferFault,
        ours: Option<usize>,
        theirs: Option<usize>,
    ) -> Outcome<Option<(usize, usize)>> {
        let TransferFault::Commit(CommitDuringTransfer { store, branch, done: result }) =
            disturbance
        else {
            return Ok(None);
        };
        let Some(committed) = result.take() else { return Ok(None) };
        let glsn = done("a commit during a transfer", committed)?;
        let mut parents = vec![self.stores[store].branches[&branch]];
        if store == exchange.to && branch == exchange.into {
            parents.push(theirs);
            parents.extend(self.graph.contained(ours).iter().map(|it| Some(*it)));
        }
        let parents: Vec<Vec<usize>> =
            parents.into_iter().map(|it| it.into_iter().collect()).collect();
        let found = self.scan(store, &parents)?;
        let commit = match found[..] {
            [(at, commit)] if at == glsn => commit,
            _ => return Err(Failure::new(format!("{found:?} is not the commit {glsn}"))),
        };
        self.stores[store].branches.insert(branch, Some(commit));
        Ok(Some((store, commit)))
    }

    /// Whether the receiving branch ends with a commit.
    fn is_on(&self, exchange: &Exchange, store: usize, commit: usize) -> bool {
        self.stores[store].branches.get(&exchange.into) == Some(&Some(commit))
    }

    /// Checks a transfer that has ended.
    fn ended(
        &mut self,
        exchange: &Exchange,
        moved: &Moved,
        (ours, theirs): (Option<Option<usize>>, Option<Option<usize>>),
        (amid, is_beside): (Option<(usize, usize)>, bool),
    ) -> Outcome {
        let before = theirs.flatten();
        let ours = ours.ok_or_else(|| Failure::new("there is no such branch"))?;
        let to = exchange.to;
        let beside = amid.filter(|it| it.0 == to && self.is_on(exchange, to, it.1));
        // The branch may have got one more commit before it was read.
        let wanted = match amid {
            Some((store, commit))
                if store == exchange.from && moved.to == self.graph.id(Some(commit)) =>
            {
                Some(commit)
            }
            _ => ours,
        };
        let is_fast_forward = self.graph.contains(wanted, before);
        ensure(is_fast_forward || exchange.is_forced, || "is not a fast-forward".to_owned())?;
        let had: Vec<usize> = {
            let had = self.graph.contained(before);
            self.graph.contained(wanted).iter().filter(|it| !had.contains(it)).copied().collect()
        };
        let new = had.iter().filter(|it| !self.stores[to].had.contains(it)).count() as u64;
        let new = if is_beside { 0 } else { new };
        ensure((new..=had.len() as u64).contains(&moved.commits), || {
            format!("of {} commits, the store had all but {new}", had.len())
        })?;
        self.stores[to].had.extend(had);
        if wanted.is_none() {
            // An empty branch is not transferred. The other one may have got a commit before it was
            // read.
            let end = match beside {
                Some((_, commit)) if moved.from == self.graph.id(Some(commit)) => Some(commit),
                _ => before,
            };
            let end = self.graph.id(end);
            return same("moved", &(moved.from, moved.to), &(end, end));
        }
        same("the branch now", &moved.to, &self.graph.id(wanted))?;
        let tip = match beside {
            // The other transfer was first.
            None if is_beside && moved.from == self.graph.id(wanted) => wanted,
            None => {
                same("the branch before", &moved.from, &self.graph.id(before))?;
                wanted
            }
            Some((_, commit)) if moved.from == self.graph.id(Some(commit)) => {
                ensure(exchange.is_forced, || "has lost a commit".to_owned())?;
                wanted
            }
            Some((_, commit)) => {
                same("the branch before", &moved.from, &self.graph.id(before))?;
                let parent = self.graph.commits[commit].parents.first().copied();
                same("parent of a commit on the branch", &parent, &wanted)?;
                Some(commit)
            }
        };
        self.stores[to].branches.insert(exchange.into.clone(), tip);
        self.check_leftovers(to, &exchange.into)
    }

    /// Whether a transfer may fail like this, without a fault.
    fn may_fail(
        &self,
        exchange: &Exchange,
        error: &Error,
        (ours, theirs): (Option<Option<usize>>, Option<Option<usize>>),
        amid: Option<(usize, usize)>,
    ) -> bool {
        let Error::InvalidInput(why) = error else { return false };
        let beside = amid.filter(|it| it.0 == exchange.to && self.is_on(exchange, it.0, it.1));
        let is_fast_forward = self.graph.contains(ours.flatten(), theirs.flatten());
        match why {
            InvalidInput::NoBranch { .. } => ours.is_none(),
            InvalidInput::NotFastForward { .. } => {
                !exchange.is_forced && (!is_fast_forward || beside.is_some())
            }
            InvalidInput::BranchMoved { .. } => beside.is_some(),
            InvalidInput::StateNotRetained { .. } => {
                !self.keeps_all() && self.leaves_the_past(exchange.to, ours.flatten())
            }
            InvalidInput::HistoryTrimmed { .. } => {
                let first = self.stores[exchange.from].db().log().bounds().first;
                !self.keeps_all() && first > Glsn(1)
            }
            _ => false,
        }
    }

    /// Whether a store lacks commits whose parent it had, but not as the last commit of a branch.
    fn leaves_the_past(&self, number: usize, wanted: Option<usize>) -> bool {
        let tips: Vec<Option<usize>> = self.stores[number].branches.values().copied().collect();
        let has = |commit: usize| tips.iter().any(|tip| self.graph.contains(*tip, Some(commit)));
        let all = self.graph.contained(wanted);
        let parents = all.iter().filter(|it| !has(**it));
        let mut parents = parents.filter_map(|it| self.graph.commits[*it].parents.first());
        let had = &self.stores[number].had;
        let is_past = |commit: usize| had.contains(&commit) && !tips.contains(&Some(commit));
        wanted.is_some_and(is_past) || parents.any(|parent| is_past(*parent))
    }
}

fn is_not_fast_forward(error: &Error) -> bool {
    matches!(error, Error::InvalidInput(InvalidInput::NotFastForward { .. }))
}
