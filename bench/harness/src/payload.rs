//! The stored data: bytes and keys derived from a number, so that nothing has to be stored to check
//! them.

/// The payload of entry `number`: the same bytes in every program that takes part in a comparison
/// (splitmix64, little endian).
pub(crate) fn fill(number: u64, into: &mut [u8]) {
    let mut state = number;
    for piece in into.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        piece.copy_from_slice(&mix(state).to_le_bytes()[..piece.len()]);
    }
}

/// A bijective mix: maps each number to a different one.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_splitmix64() {
        let mut payload = [0; 12];
        fill(1, &mut payload);
        // The reference implementation's first two outputs for seed 1.
        assert_eq!(payload[..8], 0x910a_2dec_8902_5cc1_u64.to_le_bytes());
        assert_eq!(payload[8..], 0xbeeb_8da1_658e_ec67_u64.to_le_bytes()[..4]);
    }
}
