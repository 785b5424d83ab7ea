//! Cases of reverts and resets.
