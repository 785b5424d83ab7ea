//! Values that expire.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn processes_with_clocks_of_their_own_agree_on_what_has_expired() {
    run_seeds(Mode::Expiry, 0..100);
}
