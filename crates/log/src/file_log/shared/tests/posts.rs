//! Posts: each is ordered once, whichever process is killed, and answered when it is durable.

use super::*;
use crate::file_log::append::{place, publish};
use crate::file_log::shared::posting::Posted;
use crate::members::posts::{Answer, Post};

impl Process {
    /// Lets this member post from now on.
    fn begin_to_post(&self) {
        let mut turn = self.log.turn().unwrap().unwrap();
        turn.begin().unwrap();
        turn.begin_to_post();
    }

    fn commit(&self, text: &str) -> Result<Option<Glsn>, LogError> {
        let posted = Posted {
            parts: &[&text.as_bytes()[..1], &text.as_bytes()[1..]],
            read_at: Glsn::NONE,
            known: Glsn::NONE,
        };
        self.log.commit_posted(&posted)
    }

    fn post(&self, text: &str) -> Post<'_> {
        self.members.posts.post(&[text.as_bytes()], Glsn::NONE, Glsn::NONE).unwrap()
    }

    /// Assigns the next GLSN to a post of `other`, then is killed: before it publishes the record,
    /// or before it clears the post's bit.
    fn order_and_die(self, post: &Post<'_>, text: &str, is_published: bool) -> Glsn {
        let mut turn = self.log.turn().unwrap().unwrap();
        turn.begin().unwrap();
        let order = turn.order_mut().unwrap();
        let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &[text.as_bytes()] }];
        let placed = place(&self.log.log, order, &Draft::of(&entries), None);
        let glsn = placed.unwrap().ticket.last;
        self.members.posts.answer_post(post.cell, Answer::Ordered(glsn));
        if is_published {
            publish(&self.log.log, order).unwrap();
        }
        std::mem::forget(turn);
        let Self { log, members } = self;
        drop((log, members));
        glsn
    }
}

fn members(count: usize) -> (Arc<dyn Disk>, PathBuf, Vec<Process>) {
    let (disk, store) = mem_disk();
    let members: Vec<_> = (0..count).map(|at| Process::join(&disk, &store, at == 0)).collect();
    members.iter().for_each(Process::begin_to_post);
    (disk, store, members)
}

/// Two members whose timeout is longer than a busy machine delays a thread.
fn members_with_long_timeout() -> Vec<Process> {
    let (disk, store) = mem_disk();
    let join = |at| Process::join_for(&disk, &store, at == 0, (16 << 10, 16 << 20), LOCK_TIMEOUT);
    let members: Vec<_> = (0..2).map(join).collect();
    members.iter().for_each(Process::begin_to_post);
    members
}

#[test]
fn one_member_orders_what_several_have_posted() {
    let (_disk, _store, members) = members(3);
    let posts: Vec<_> = members[1..].iter().map(|member| member.post("b")).collect();
    assert!(posts.iter().all(|post| post.answer() == Answer::None));
    assert_eq!(members[0].commit("a").unwrap(), Some(Glsn(1)), "its own comes first");
    let answers: Vec<_> = posts.iter().map(Post::answer).collect();
    assert_eq!(answers, [Answer::Ordered(Glsn(2)), Answer::Ordered(Glsn(3))]);
    assert_eq!(members[0].members.marks.durable_glsn(), Glsn(3));
    members.iter().for_each(|member| assert_eq!(member.texts(), ["a", "b", "b"]));
}

#[test]
fn a_post_that_a_member_ordered_before_it_was_killed_is_ordered_once() {
    for is_published in [false, true] {
        // The next member orders its own record, or posts.
        for by_post in [false, true] {
            let (disk, store, mut members) = members(3);
            let killed = members.remove(0);
            let post = members[0].post("b");
            assert_eq!(killed.order_and_die(&post, "b", is_published), Glsn(1));
            assert_eq!(
                post.answer() != Answer::None,
                is_published,
                "it is durable if its end was published"
            );
            let next = &members[1];
            if by_post {
                next.commit("c").unwrap().unwrap();
            } else {
                next.append("c");
            }
            let is_answered = is_published || by_post;
            assert_eq!(post.answer() != Answer::None, is_answered);
            next.commit("d").unwrap().unwrap();
            let Answer::Ordered(glsn) = post.answer() else { panic!("it is durable") };
            let texts = next.texts();
            assert_eq!(texts[glsn.0 as usize - 1], "b");
            assert_eq!(texts.iter().filter(|text| *text == "b").count(), 1, "{texts:?}");
            assert_eq!(texts.len(), 3);
            drop(post);
            members.into_iter().for_each(Process::leave);
            assert_eq!(verify(&disk, &store), texts);
        }
    }
}

#[test]
fn post_of_a_killed_process_is_neither_ordered_nor_mixed_with_those_of_its_successor() {
    let (disk, store, mut members) = members(2);
    let killed = members.pop().unwrap();
    let slot = killed.members.table.slot();
    std::mem::forget(killed.post("of the killed one"));
    drop(killed);
    members[0].commit("before").unwrap().unwrap();
    assert_eq!(members[0].texts(), ["before"], "its owner has ended");
    let next = Process::join(&disk, &store, false);
    assert_eq!(next.members.table.slot(), slot);
    assert_eq!(next.commit("x").unwrap(), None, "it may not post yet");
    next.begin_to_post();
    let post = next.post("of the next one");
    members[0].commit("a").unwrap().unwrap();
    assert!(matches!(post.answer(), Answer::Ordered(_)));
    assert_eq!(next.texts(), ["before", "a", "of the next one"]);
}

#[test]
fn a_post_read_before_a_record_that_all_must_apply_is_refused() {
    let (_disk, _store, members) = members(2);
    let post = members[1].post("b");
    members[0].members.marks.set_must_apply_upto(members[0].append("a change"));
    assert_eq!(members[0].commit("c").unwrap(), None);
    assert_eq!(post.answer(), Answer::Refused);
    drop(post);
    let known = members[0].members.marks.must_apply_upto();
    let posted = Posted { parts: &[b"d"], read_at: Glsn::NONE, known };
    assert_eq!(members[1].log.commit_posted(&posted).unwrap(), Some(Glsn(2)));
    assert_eq!(members[0].texts(), ["a change", "d"]);
}

#[test]
fn a_record_that_is_too_large_or_finds_no_cell_is_not_posted() {
    let (_disk, _store, members) = members(1);
    assert_eq!(members[0].commit(&"x".repeat(2000)).unwrap(), None);
    let posts: Vec<_> = (0..8).map(|_| members[0].post("p")).collect();
    assert_eq!(members[0].commit("one too many").unwrap(), None);
    drop(posts);
    assert_eq!(members[0].commit("its cells still hold posts").unwrap(), None);
    members[0].log.turn().unwrap().unwrap().begin_to_post();
    assert_eq!(members[0].texts().len(), 0);
}

#[test]
fn a_member_that_waits_too_long_for_another_one_takes_its_post_back() {
    let (_disk, _store, members) = members(2);
    members[1].members.posts.take_posting(members[1].post("").cell, &|| false).unwrap();
    assert_eq!(members[0].commit("a").unwrap(), None);
    members[0].append("b");
    members[1].members.posts.release_posting();
    assert_eq!(members[0].commit("c").unwrap(), Some(Glsn(2)));
    assert_eq!(members[0].texts(), ["b", "c", ""]);
}

#[test]
fn a_post_is_taken_back_although_another_member_has_the_turn() {
    let (_disk, _store, members) = members(2);
    let turn = members[1].log.turn().unwrap().unwrap();
    assert_eq!(members[0].commit("a").unwrap(), None);
    drop(turn);
    members[0].append("b");
    assert_eq!(members[1].commit("c").unwrap(), Some(Glsn(2)));
    assert_eq!(members[0].texts(), ["b", "c"]);
}

#[test]
fn a_post_that_its_owner_has_left_is_not_ordered_by_another_member() {
    for is_published in [false, true] {
        let (_disk, _store, mut members) = members(3);
        let killed = members.pop().unwrap();
        let mut turn = killed.log.turn().unwrap().unwrap();
        turn.begin().unwrap();
        std::thread::scope(|scope| {
            let (cell, stalled) = loop {
                let waiting = scope.spawn(|| members[0].commit("a"));
                let mut cell = None;
                while cell.is_none() && !waiting.is_finished() {
                    cell = killed.members.posts.pending().next();
                    std::thread::yield_now();
                }
                let claimed = cell.filter(|cell| killed.members.posts.claim_post(*cell));
                let done = waiting.join().unwrap();
                match claimed {
                    Some(cell) => break (cell, done),
                    // On a busy machine its owner may have withdrawn it before.
                    None => assert!(matches!(done, Ok(None)), "{done:?}"),
                }
            };
            assert!(!killed.members.posts.claim_post(cell));
            assert!(matches!(stalled, Err(LogError::Stalled { .. })), "{stalled:?}");
            if is_published {
                let order = turn.order_mut().unwrap();
                let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &[b"a"] }];
                let draft = Draft::of(&entries);
                let glsn = place(&killed.log.log, order, &draft, None).unwrap().ticket.last;
                killed.members.posts.answer_post(cell, Answer::Ordered(glsn));
                publish(&killed.log.log, order).unwrap();
            }
        });
        std::mem::forget(turn);
        let Process { log, members: ended } = killed;
        drop((log, ended));
        members[1].commit("b").unwrap().unwrap();
        assert_eq!(members[0].texts(), if is_published { vec!["a", "b"] } else { vec!["b"] });
    }
}

#[test]
fn a_wait_for_a_sync_does_not_wait_for_posts() {
    let members = members_with_long_timeout();
    members[1].members.posts.take_posting(members[1].post("held").cell, &|| false).unwrap();
    let is_posted = || members[0].members.posts.has_posts();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| members[0].commit("a"));
        while !is_posted() {
            std::thread::yield_now();
        }
        // This member can append even while another thread of its process leads the waiters for
        // posts.
        assert_eq!(members[0].append("b"), Glsn(1));
        assert!(!waiting.is_finished());
        members[1].members.posts.release_posting();
        assert_eq!(waiting.join().unwrap().unwrap(), Some(Glsn(2)));
    });
}

#[test]
fn nothing_is_posted_while_a_stalled_member_holds_the_lock() {
    let (_disk, _store, members) = members(2);
    members[1].members.posts.take_posting(members[1].post("").cell, &|| false).unwrap();
    assert_eq!(members[0].commit("a").unwrap(), None);
    assert!(members[0].members.posts.post(&[b"b"], Glsn::NONE, Glsn::NONE).is_none());
    members[1].members.posts.release_posting();
    assert_eq!(members[0].commit("c").unwrap(), Some(Glsn(1)));
}

#[test]
fn a_member_without_memory_to_order_posts_refuses_its_own_and_continues() {
    let (_disk, _store, members) = members(2);
    members[1].append("a");
    let post = members[1].post("b");
    members[0].log.log.env.options.budget.fail_after(0);
    assert_eq!(members[0].commit("c").unwrap(), None);
    members[0].log.log.env.options.budget.fail_after(u64::MAX);
    assert_eq!(post.answer(), Answer::None);
    assert_eq!(members[0].commit("d").unwrap(), Some(Glsn(2)));
    assert_eq!(post.answer(), Answer::Ordered(Glsn(3)));
}

#[test]
fn posts_go_on_in_the_next_segment() {
    let (disk, store, members) = members(2);
    let mut texts = Vec::new();
    for round in 0..150 {
        let posts: Vec<_> = (0..8)
            .map(|at| members[1].post(&format!("{round}.{at} {}", "y".repeat(round * 7 % 200))))
            .collect();
        let own = format!("own {round}");
        members[0].commit(&own).unwrap().unwrap();
        assert!(posts.iter().all(|post| matches!(post.answer(), Answer::Ordered(_))));
        texts.push(own);
        texts.extend((0..8).map(|at| format!("{round}.{at} {}", "y".repeat(round * 7 % 200))));
    }
    assert!(members[0].log.log.segments.read().iter().count() > 3);
    assert!(members[1].texts() == texts);
    members.into_iter().for_each(Process::leave);
    assert!(verify(&disk, &store) == texts);
}

#[test]
fn records_posted_by_threads_of_several_members_are_each_present_once() {
    append_at_once((3, 300, 200), Process::begin_to_post, |member, thread, round, text| {
        // Some records are ordered by their owners.
        let posted = if round % 16 == thread { None } else { member.commit(text).unwrap() };
        posted.unwrap_or_else(|| member.append(text))
    });
}
