//! Reverts, resets, merges of branches, cherry-picks, and their conflicts.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::{
    Glsn, MergeAction, MergeDecision, MergeInput, MergeOutcome, MergeRule, MergeSide, Value,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::bytes_like::BytesLike;
use crate::errors::{OrRaise, merge_conflicts};
use crate::fork::ForkSafe;
use crate::keyspace::existing;
use crate::store::Store;

/// The exception that a rule's function raised, kept until the merge raises it to the caller.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn set(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn check(&self) -> PyResult<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

/// A revert with its rules.
pub(crate) struct Revert {
    revert: plimsoll::Revert,
    raised: Raised,
}

impl Revert {
    /// `rules` has a rule, or a function, for some keyspaces.
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        branch: &plimsoll::Branch,
        glsn: u64,
        rules: Option<&Bound<'_, PyDict>>,
        [keyspaces, exclude]: [Option<&Bound<'_, PyAny>>; 2],
    ) -> PyResult<Self> {
        let raised = Raised::default();
        let mut revert = branch.revert(Glsn(glsn));
        for keyspace in wanted(py, store, keyspaces)? {
            revert = revert.keyspace(&keyspace);
        }
        for keyspace in listed(py, store, "exclude", exclude)? {
            revert = revert.except(&keyspace);
        }
        for (keyspace, rule) in rules.into_iter().flatten() {
            let keyspace = existing(py, store, &keyspace)?;
            revert = revert.rule(&keyspace, rule_of(&rule, &raised)?);
        }
        Ok(Self { revert, raised })
    }

    /// Runs it; returns the GLSN of its commit, or `None` if there was nothing to change.
    pub(crate) fn run(
        self,
        py: Python<'_>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let Self { mut revert, raised } = self;
        if let Some(metadata) = metadata {
            revert = revert.metadata(metadata.get());
        }
        let outcome = py.detach(|| revert.run());
        merged(py, outcome, raised)
    }

    pub(crate) fn preview(self, py: Python<'_>) -> PyResult<MergeSteps> {
        let steps = py.detach(|| self.revert.preview()).or_raise()?;
        Ok(MergeSteps::new(steps, self.raised))
    }
}

/// A merge of a branch with its rules.
pub(crate) struct BranchMerge {
    merge: plimsoll::BranchMerge,
    raised: Raised,
}

impl BranchMerge {
    /// `rules` as for [`Revert::new`].
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        [from, into]: [&plimsoll::Branch; 2],
        rules: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let raised = Raised::default();
        let mut merge = store.db()?.merge(from).into(into);
        for (keyspace, rule) in rules.into_iter().flatten() {
            let keyspace = existing(py, store, &keyspace)?;
            merge = merge.rule(&keyspace, rule_of(&rule, &raised)?);
        }
        Ok(Self { merge, raised })
    }

    /// Runs it; returns the GLSN of its commit, or `None` if there was nothing to merge.
    pub(crate) fn run(
        self,
        py: Python<'_>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let Self { mut merge, raised } = self;
        if let Some(metadata) = metadata {
            merge = merge.metadata(metadata.get());
        }
        let outcome = py.detach(|| merge.run());
        merged(py, outcome, raised)
    }

    pub(crate) fn preview(self, py: Python<'_>) -> PyResult<MergeSteps> {
        let steps = py.detach(|| self.merge.preview()).or_raise()?;
        Ok(MergeSteps::new(steps, self.raised))
    }
}

/// A cherry-pick with its rules.
pub(crate) struct CherryPick {
    pick: plimsoll::CherryPick,
    raised: Raised,
}

impl CherryPick {
    /// The other arguments as for [`Revert::new`].
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        into: &plimsoll::Branch,
        glsn: u64,
        rules: Option<&Bound<'_, PyDict>>,
        [keyspaces, exclude]: [Option<&Bound<'_, PyAny>>; 2],
    ) -> PyResult<Self> {
        let raised = Raised::default();
        let mut pick = store.db()?.cherry_pick(Glsn(glsn)).into(into);
        for keyspace in wanted(py, store, keyspaces)? {
            pick = pick.keyspace(&keyspace);
        }
        for keyspace in listed(py, store, "exclude", exclude)? {
            pick = pick.except(&keyspace);
        }
        for (keyspace, rule) in rules.into_iter().flatten() {
            let keyspace = existing(py, store, &keyspace)?;
            pick = pick.rule(&keyspace, rule_of(&rule, &raised)?);
        }
        Ok(Self { pick, raised })
    }

    /// Runs it; returns the GLSN of its commit, or `None` if there was nothing to change.
    pub(crate) fn run(
        self,
        py: Python<'_>,
        metadata: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let Self { mut pick, raised } = self;
        if let Some(metadata) = metadata {
            pick = pick.metadata(metadata.get());
        }
        let outcome = py.detach(|| pick.run());
        merged(py, outcome, raised)
    }

    pub(crate) fn preview(self, py: Python<'_>) -> PyResult<MergeSteps> {
        let steps = py.detach(|| self.pick.preview()).or_raise()?;
        Ok(MergeSteps::new(steps, self.raised))
    }
}

/// The GLSN of a merge's commit; `None` if there was nothing to change.
fn merged(
    py: Python<'_>,
    outcome: plimsoll::Result<MergeOutcome>,
    raised: Raised,
) -> PyResult<Option<u64>> {
    raised.check()?;
    match outcome.or_raise()? {
        MergeOutcome::Merged(glsn) => Ok(Some(glsn.0)),
        MergeOutcome::Conflicts(conflicts) => {
            Err(merge_conflicts(py, MergeSteps::new(conflicts, raised))?)
        }
        _ => Ok(None),
    }
}

/// Runs a reset; returns the GLSN of its commit, or `None` if there was nothing to change.
pub(crate) fn run_reset(
    py: Python<'_>,
    mut reset: plimsoll::Reset,
    metadata: Option<BytesLike<'_>>,
) -> PyResult<Option<u64>> {
    if let Some(metadata) = metadata {
        reset = reset.metadata(metadata.get());
    }
    Ok(py.detach(|| reset.run()).or_raise()?.map(|glsn| glsn.0))
}

pub(crate) fn preview_reset(py: Python<'_>, reset: plimsoll::Reset) -> PyResult<MergeSteps> {
    let steps = py.detach(|| reset.preview()).or_raise()?;
    Ok(MergeSteps::new(steps, Raised::default()))
}

/// A reset of all keyspaces of a branch, or of some.
pub(crate) fn reset(
    py: Python<'_>,
    store: &Arc<Store>,
    branch: &plimsoll::Branch,
    moment: plimsoll::Moment,
    keyspaces: Option<&Bound<'_, PyAny>>,
) -> PyResult<plimsoll::Reset> {
    let mut reset = branch.reset_to(moment);
    for keyspace in wanted(py, store, keyspaces)? {
        reset = reset.keyspace(&keyspace);
    }
    Ok(reset)
}

/// The keyspaces of the argument `keyspaces`; none if it was left out.
fn wanted(
    py: Python<'_>,
    store: &Arc<Store>,
    keyspaces: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<plimsoll::Keyspace>> {
    let wanted = listed(py, store, "keyspaces", keyspaces)?;
    if keyspaces.is_some() && wanted.is_empty() {
        return Err(PyValueError::new_err("keyspaces is empty; leave it out to mean all"));
    }
    Ok(wanted)
}

/// The keyspaces of the argument with this name; none if it was left out.
fn listed(
    py: Python<'_>,
    store: &Arc<Store>,
    argument: &str,
    keyspaces: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<plimsoll::Keyspace>> {
    let Some(keyspaces) = keyspaces else { return Ok(Vec::new()) };
    if keyspaces.is_instance_of::<PyString>() {
        let message = format!("{argument} is a list of keyspaces or names, not a str");
        return Err(PyTypeError::new_err(message));
    }
    keyspaces.try_iter()?.map(|keyspace| existing(py, store, &keyspace?)).collect()
}

fn rule_of(rule: &Bound<'_, PyAny>, raised: &Raised) -> PyResult<MergeRule> {
    if rule.is_callable() {
        return Ok(function(rule.clone().unbind(), raised.clone()));
    }
    let name: String = rule
        .extract()
        .map_err(|_| PyTypeError::new_err("a rule is the name of a rule, or a function"))?;
    Ok(match name.as_str() {
        "conflict" => MergeRule::Conflict,
        "ours" => MergeRule::Ours,
        "theirs" => MergeRule::Theirs,
        "counter" => MergeRule::Counter,
        "text" => MergeRule::Text,
        "newest" => MergeRule::Newest,
        "json" => MergeRule::Json,
        "json-set" => MergeRule::JsonSet,
        other => {
            return Err(PyValueError::new_err(format!(
                "a rule is 'conflict', 'ours', 'theirs', 'newest', 'counter', 'text', 'json', \
                 'json-set' or a function, not {other:?}"
            )));
        }
    })
}

/// A rule that calls a function of Python. If that raises, the merge stops with a conflict, and the
/// exception is kept in `raised`.
fn function(function: Py<PyAny>, raised: Raised) -> MergeRule {
    MergeRule::function(move |input| {
        Python::attach(|py| {
            decide(function.bind(py), input).unwrap_or_else(|error| {
                raised.set(error);
                MergeDecision::Conflict
            })
        })
    })
}

fn decide(function: &Bound<'_, PyAny>, input: &MergeInput<'_>) -> PyResult<MergeDecision> {
    let py = function.py();
    let bytes = |value: Option<&[u8]>| value.map(|value| PyBytes::new(py, value));
    let values = (bytes(input.base), bytes(input.ours), bytes(input.theirs));
    let key = PyBytes::new(py, input.key);
    let decided = function.call1((key, values.0, values.1, values.2))?;
    if decided.is_none() {
        return Ok(MergeDecision::Delete);
    }
    if decided.is(py.NotImplemented()) {
        return Ok(MergeDecision::Conflict);
    }
    let value: BytesLike<'_> = decided.extract()?;
    Ok(MergeDecision::Put(value.get().to_vec()))
}

/// The steps of a revert or reset, key by key, or the conflicts of a revert: an iterator, from
/// `Db.preview_revert`, `Db.preview_reset` and `MergeConflicts.conflicts`. Steps are computed as
/// they are read, and not held in memory.
///
/// >>> db = plimsoll.in_memory()
/// >>> before = db.put(b"a", b"1")
/// >>> db[b"b"] = b"2"
/// >>> [(step.action, step.key) for step in db.preview_reset(before)]
/// [('delete', b'b')]
#[pyclass(module = "plimsoll", frozen)]
pub struct MergeSteps {
    steps: Mutex<ForkSafe<plimsoll::MergeSteps>>,
    raised: Raised,
}

impl MergeSteps {
    pub(crate) fn new(steps: plimsoll::MergeSteps, raised: Raised) -> Self {
        Self { steps: Mutex::new(ForkSafe::new(steps)), raised }
    }
}

#[pymethods]
impl MergeSteps {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<MergeStep>> {
        py.check_signals()?;
        let mut steps = self.steps.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let steps = steps.get_mut()?;
        let next = py.detach(|| steps.next()).transpose();
        self.raised.check()?;
        Ok(next.or_raise()?.map(|step| MergeStep(ForkSafe::new(step))))
    }
}

/// A key that a revert or reset puts, deletes, or reports as a conflict.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"tea"] = b"3.10"
/// >>> wrong = db.put(b"tea", b"31")
/// >>> step = next(db.preview_revert(wrong))
/// >>> step.action, step.keyspace, step.key, step.ours(), step.merged()
/// ('put', 'default', b'tea', b'31', b'3.10')
#[pyclass(module = "plimsoll", frozen)]
pub struct MergeStep(ForkSafe<plimsoll::MergeStep>);

impl MergeStep {
    fn read<'py>(
        &self,
        py: Python<'py>,
        read: impl FnOnce(&plimsoll::MergeStep) -> plimsoll::Result<Option<Value>> + Send,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let step = self.0.get()?;
        let value = py.detach(|| read(step)).or_raise()?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }
}

#[pymethods]
impl MergeStep {
    /// The name of the keyspace.
    #[getter]
    fn keyspace(&self) -> PyResult<String> {
        Ok(self.0.get()?.keyspace().to_owned())
    }

    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.0.get()?.key()))
    }

    /// "put", "delete" or "conflict".
    #[getter]
    fn action(&self) -> PyResult<&'static str> {
        Ok(match self.0.get()?.action() {
            MergeAction::Put => "put",
            MergeAction::Delete => "delete",
            MergeAction::Conflict => "conflict",
        })
    }

    /// The value in the state that both sides come from: right after the reverted commit; `None` if
    /// the key had none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> wrong = db.put(b"tea", b"31")
    /// >>> next(db.preview_revert(wrong)).base()
    /// b'31'
    fn base<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, |step| step.value(MergeSide::Base))
    }

    /// The newest value; `None` if the key has none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> wrong = db.put(b"tea", b"31")
    /// >>> next(db.preview_revert(wrong)).ours()
    /// b'31'
    fn ours<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, |step| step.value(MergeSide::Ours))
    }

    /// The value before the reverted commit, or at the moment of the reset; `None` if the key had
    /// none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> wrong = db.put(b"tea", b"31")
    /// >>> next(db.preview_revert(wrong)).theirs()
    /// b'3.10'
    fn theirs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, |step| step.value(MergeSide::Theirs))
    }

    /// The value that is put; `None` for a deletion and for a conflict.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> wrong = db.put(b"tea", b"31")
    /// >>> next(db.preview_revert(wrong)).merged()
    /// b'3.10'
    fn merged<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, plimsoll::MergeStep::merged)
    }

    fn __repr__(&self) -> PyResult<String> {
        let step = self.0.get()?;
        let key = String::from_utf8_lossy(step.key());
        Ok(format!("<plimsoll merge step: {} {key:?} in {:?}>", self.action()?, step.keyspace()))
    }
}
