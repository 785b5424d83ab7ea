//! Runs the lines of a script one after the other on one open store.
//!
//! Invariant: a line takes effect completely or not at all, and no later failure contradicts an
//! answer. Outside a transaction, a line's commit is ordered when the line returns, and
//! [`Session::settle`] waits until all commits are durable.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use plimsoll::{Branch, CommitTicket, Db, Keyspace, Overflow, Transaction};

use crate::exit::{Exit, Failure, Outcome};
use crate::key_range::KeyRange;
use crate::load::input::Input;
use crate::moment::At;
use crate::output::Output;
use crate::script::answers;
use crate::script::source::Source;
use crate::script::statement::{NewValue, Report, Statement, Update};
use crate::script::words::Word;
use crate::stderr::say;
use crate::time::now;
use crate::{branches, keyspaces, script};

/// The keyspace and the branch of a session's lines.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) keyspace: &'a str,
    pub(crate) branch: &'a str,
}

/// Runs a line that is a command of the command line.
pub(crate) type AnswerReport<'a> = &'a dyn Fn(Report, &[Word], Place<'_>, &mut Output) -> Outcome;

/// The relation between lines and transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All lines are one transaction.
    Whole,
    /// Each line is a transaction, unless `begin` precedes it.
    EachLine,
    /// Like [`Mode::EachLine`], and each line is answered, because a person or a program waits for
    /// it.
    Answered,
}

/// The outcome of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Yes,
    /// The requested key does not exist.
    Missing,
    /// The session ends.
    Quit,
}

/// An open store with the state that carries over between lines.
pub(crate) struct Session<'a> {
    db: &'a Db,
    answer: AnswerReport<'a>,
    mode: Mode,
    branch: Branch,
    keyspace: String,
    transaction: Option<Transaction>,
    /// The last commit. Possibly it is not durable yet; earlier commits are durable once it is.
    submitted: Option<CommitTicket>,
    last_commit: Option<u64>,
    transactions: u64,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        db: &'a Db,
        answer: AnswerReport<'a>,
        mode: Mode,
        branch: Branch,
        keyspace: String,
    ) -> Self {
        let transaction = (mode == Mode::Whole).then(|| branch.begin());
        Self {
            db,
            answer,
            mode,
            branch,
            keyspace,
            transaction,
            submitted: None,
            last_commit: None,
            transactions: 0,
        }
    }

    /// The name of the branch that lines read and write.
    pub(crate) fn branch(&self) -> &str {
        self.branch.name()
    }

    /// Whether a transaction is open.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Number of committed transactions.
    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Runs one line.
    pub(crate) fn run(
        &mut self,
        statement: Statement,
        output: &mut Output,
    ) -> Result<Done, Failure> {
        match statement {
            Statement::Put { key, value, ttl } => {
                self.put(&key, value, ttl, output).map(|()| Done::Yes)
            }
            Statement::Expire { key, ttl } => self.expire(&key, ttl, output),
            Statement::Ttl { key, at } => {
                let is_there = self.read(at, |source, keyspace| {
                    answers::ttl(source.ttl(keyspace, &key)?, output)
                })?;
                if !is_there {
                    answers::no_such_key(&key);
                }
                Ok(if is_there { Done::Yes } else { Done::Missing })
            }
            Statement::Delete { keys } => self.delete(&keys, output),
            Statement::DeleteRange(range) => self.delete_range(&range, output).map(|()| Done::Yes),
            Statement::Update { key, update } => {
                self.update(&key, update, output).map(|()| Done::Yes)
            }
            Statement::Get { key, at } => self.get(&key, at, output),
            Statement::Scan { range, limit, reverse, keys_only, at } => {
                let wanted =
                    answers::Wanted { limit: limit.unwrap_or(u64::MAX), reverse, keys_only };
                self.read(at, |source, keyspace| {
                    answers::scan(source, keyspace, &range, wanted, output)
                })?;
                Ok(Done::Yes)
            }
            Statement::Count { range, at } => {
                let count = self.read(at, |source, keyspace| source.count(keyspace, &range))?;
                answers::count(count, output)?;
                Ok(Done::Yes)
            }
            Statement::Use(name) => {
                self.keyspace = name;
                Ok(Done::Yes)
            }
            Statement::Keyspaces => keyspaces::print_list(self.db, output).map(|()| Done::Yes),
            Statement::Branch(name) => self.switch(&name).map(|()| Done::Yes),
            Statement::Branches => branches::print_list(self.db, output).map(|()| Done::Yes),
            Statement::Report(report, words) => self.report(report, &words, output),
            Statement::Begin => self.begin().map(|()| Done::Yes),
            Statement::Commit => self.commit_by_word(output).map(|()| Done::Yes),
            Statement::Rollback => self.roll_back().map(|()| Done::Yes),
            Statement::Help => output.line(script::LANGUAGE).map(|()| Done::Yes),
            Statement::Quit => Ok(Done::Quit),
        }
    }

    /// Commits the open transaction of [`Mode::Whole`] and waits until all commits are durable.
    /// Returns the GLSN of the last one.
    pub(crate) fn settle(&mut self) -> Result<Option<u64>, Failure> {
        if self.mode == Mode::Whole
            && let Some(transaction) = self.transaction.take()
        {
            self.submit(transaction)?;
        }
        self.wait()?;
        Ok(self.last_commit)
    }

    fn wait(&mut self) -> Result<(), Failure> {
        if let Some(ticket) = self.submitted.take() {
            ticket.wait()?;
        }
        Ok(())
    }

    fn submit(&mut self, transaction: Transaction) -> Result<u64, Failure> {
        let ticket = transaction.commit_submit()?;
        let glsn = ticket.glsn();
        self.submitted = Some(ticket);
        self.last_commit = Some(glsn.0);
        self.transactions += 1;
        Ok(glsn.0)
    }

    /// Writes into the open transaction, or into a separate one, which commits unless `write`
    /// returns that it wrote nothing. Creates the keyspace if it does not exist.
    fn write(
        &mut self,
        output: &mut Output,
        write: impl FnOnce(&mut Transaction, &Keyspace) -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        keyspaces::check_writable(&self.keyspace)?;
        let keyspace = self.db.keyspace(&self.keyspace)?;
        if let Some(transaction) = &mut self.transaction {
            return write(transaction, &keyspace).map(drop);
        }
        let mut transaction = self.branch.begin();
        if write(&mut transaction, &keyspace)? == 0 {
            return Ok(());
        }
        let glsn = self.submit(transaction)?;
        if self.mode == Mode::Answered {
            self.wait()?;
            answers::committed(glsn, output)?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        key: &[u8],
        value: NewValue,
        ttl: Option<Duration>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        self.write(output, |transaction, keyspace| {
            match (value, ttl) {
                (NewValue::Bytes(value), None) => transaction.put(keyspace, key, &value)?,
                (NewValue::Bytes(value), Some(ttl)) => {
                    transaction.put_with_ttl(keyspace, key, &value, ttl)?;
                }
                (NewValue::File(path), ttl) => {
                    let mut input = Input::find(&path)?.open()?;
                    match ttl {
                        None => transaction.put_reader(keyspace, key, &mut input)?,
                        Some(ttl) => {
                            transaction.put_reader_with_ttl(keyspace, key, &mut input, ttl)?
                        }
                    };
                }
            }
            Ok(1)
        })
    }

    /// Changes when the value of a key expires; `None` removes its expiry. Outside a transaction,
    /// the new expiry is computed from the writes of earlier lines, once these are durable.
    fn expire(
        &mut self,
        key: &[u8],
        ttl: Option<Duration>,
        output: &mut Output,
    ) -> Result<Done, Failure> {
        self.wait()?;
        let mut is_there = false;
        self.write(output, |transaction, keyspace| {
            is_there = match ttl {
                None => transaction.persist(keyspace, key)?,
                Some(ttl) => {
                    let at = SystemTime::from(now()).checked_add(ttl);
                    let at = at.ok_or_else(|| Failure::usage("the time is too long"))?;
                    transaction.expire_at(keyspace, key, at)?
                }
            };
            Ok(u64::from(is_there))
        })?;
        if !is_there {
            answers::no_such_key(key);
        }
        Ok(if is_there { Done::Yes } else { Done::Missing })
    }

    /// Updates the value of a key. Outside a transaction, the update is ordered as other lines are,
    /// and sees their writes.
    fn update(&mut self, key: &[u8], update: Update, output: &mut Output) -> Result<(), Failure> {
        self.write(output, |transaction, keyspace| {
            match update {
                Update::Add(number) => {
                    transaction.add(keyspace, key, number, Overflow::Checked)?;
                }
                Update::Append(more) => transaction.append(keyspace, key, more)?,
                Update::Swap { expected, new } => {
                    let (expected, new) = (expected.as_deref(), new.as_deref());
                    transaction.compare_and_swap(keyspace, key, expected, new)?;
                }
            }
            Ok(1)
        })
    }

    fn delete(&mut self, keys: &[Vec<u8>], output: &mut Output) -> Result<Done, Failure> {
        // Checking whether a key exists would make each line wait until the one before it is
        // durable.
        let looks = self.mode == Mode::Answered;
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        self.write(output, |transaction, keyspace| {
            let mut deleted = 0;
            // A key that is named twice exists only for its first deletion.
            for key in keys.iter().filter(|key| seen.insert(key.as_slice())) {
                match looks && !transaction.contains_key(keyspace, key)? {
                    true => missing.push(key),
                    false => {
                        transaction.delete(keyspace, key)?;
                        deleted += 1;
                    }
                }
            }
            Ok(deleted)
        })?;
        missing.iter().for_each(|key| answers::no_such_key(key));
        Ok(if missing.is_empty() { Done::Yes } else { Done::Missing })
    }

    fn delete_range(&mut self, range: &KeyRange, output: &mut Output) -> Result<(), Failure> {
        self.write(output, |transaction, keyspace| {
            transaction.delete_range(keyspace, range.bounds())?;
            Ok(1)
        })
    }

    fn get(&mut self, key: &[u8], at: Option<At>, output: &mut Output) -> Result<Done, Failure> {
        let found =
            self.read(at, |source, keyspace| answers::get(source, keyspace, key, output))?;
        if !found {
            answers::no_such_key(key);
        }
        Ok(if found { Done::Yes } else { Done::Missing })
    }

    /// Reads in the open transaction, at a moment, or at the newest one.
    fn read<T>(
        &mut self,
        at: Option<At>,
        read: impl FnOnce(&Source<'_>, &Keyspace) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // Earlier lines' writes are readable once durable.
        self.wait()?;
        let source = match (&self.transaction, at) {
            (Some(transaction), None) => Source::Open(transaction),
            (_, at) => {
                let at = at.as_ref();
                Source::Past(branches::snapshot(self.db, &self.branch, at, &self.keyspace)?)
            }
        };
        let keyspace = match &source {
            Source::Open(_) => keyspaces::known_keyspace(self.db, &self.keyspace)?,
            Source::Past(snapshot) => keyspaces::keyspace_at(self.db, snapshot, &self.keyspace)?,
        };
        read(&source, &keyspace)
    }

    /// Runs a line that is a command of the command line. Differences do not fail a line, and a key
    /// that never existed counts as missing.
    fn report(
        &mut self,
        report: Report,
        words: &[Word],
        output: &mut Output,
    ) -> Result<Done, Failure> {
        self.wait()?;
        let place = Place { keyspace: &self.keyspace, branch: self.branch.name() };
        match (self.answer)(report, words, place, output) {
            Err(failure) if failure.exit() == Some(Exit::No) => {
                say(failure);
                Ok(Done::Missing)
            }
            ended => ended.map(|_| Done::Yes),
        }
    }

    fn switch(&mut self, name: &str) -> Result<(), Failure> {
        self.refuse_in_whole("branch")?;
        if self.transaction.is_some() {
            return Err(Failure::usage(
                "a transaction is open; `commit` or `rollback` ends it, then change the branch",
            ));
        }
        self.branch = branches::find(self.db, Some(name))?;
        Ok(())
    }

    fn refuse_in_whole(&self, word: &str) -> Result<(), Failure> {
        match self.mode {
            Mode::Whole => Err(Failure::usage(format!(
                "all lines are one transaction; leave `{word}` out, or make each line a \
                 transaction with --each-line"
            ))),
            Mode::EachLine | Mode::Answered => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.refuse_in_whole("begin")?;
        if self.transaction.is_some() {
            return Err(Failure::usage(
                "a transaction is open already; `commit` or `rollback` ends it",
            ));
        }
        // A transaction reads durable data, which must include all earlier lines.
        self.wait()?;
        self.transaction = Some(self.branch.begin());
        Ok(())
    }

    fn take_open(&mut self, word: &str) -> Result<Transaction, Failure> {
        self.refuse_in_whole(word)?;
        self.transaction
            .take()
            .ok_or_else(|| Failure::usage("no transaction is open; `begin` opens one"))
    }

    fn commit_by_word(&mut self, output: &mut Output) -> Result<(), Failure> {
        let transaction = self.take_open("commit")?;
        let glsn = self.submit(transaction)?;
        if self.mode == Mode::Answered {
            self.wait()?;
            answers::committed(glsn, output)?;
        }
        Ok(())
    }

    fn roll_back(&mut self) -> Result<(), Failure> {
        self.take_open("rollback").map(Transaction::abort)
    }
}
