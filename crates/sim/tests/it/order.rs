//! Replicas whose commits an order outside of them orders.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn histories_of_replicas_are_serializable_and_equal() {
    run_seeds(Mode::Order, 0..40);
}
