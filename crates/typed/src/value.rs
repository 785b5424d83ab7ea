//! Values as MessagePack, with structs as maps by field name.

use rmp_serde::decode::{Deserializer, Error as DecodeError};
use serde::de::{Deserialize, DeserializeOwned, IgnoredAny};
use serde::ser::Serialize;

/// The maximum nesting of maps and lists, so that a decoder of a recursive type stays within its
/// stack. `serde_json` has the same limit.
const MAX_DEPTH: usize = 128;

/// The bytes of a value. The error is that of its `Serialize`, or its nesting is too deep.
pub(crate) fn encode<V: Serialize>(value: &V) -> Result<Vec<u8>, String> {
    let bytes = rmp_serde::to_vec_named(value).map_err(|error| error.to_string())?;
    check_depth(&bytes)?;
    Ok(bytes)
}

/// The value that `bytes` encodes. Bytes after its end are an error.
pub(crate) fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, String> {
    check_depth(bytes)?;
    let mut decoder = Deserializer::from_read_ref(bytes);
    let value = V::deserialize(&mut decoder).map_err(|error| error.to_string())?;
    // The decoder does not tell whether bytes are left, so read one more value. Reading a bool
    // fails with this error only at the end of the bytes.
    match bool::deserialize(&mut decoder) {
        Err(DecodeError::InvalidMarkerRead(_)) => Ok(value),
        _ => Err("bytes follow its end".to_owned()),
    }
}

/// Checked apart from decoding, because the decoder does not count the levels of enums.
fn check_depth(bytes: &[u8]) -> Result<(), String> {
    // Each level takes at least a byte.
    if bytes.len() <= MAX_DEPTH {
        return Ok(());
    }
    let mut decoder = Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(MAX_DEPTH);
    match IgnoredAny::deserialize(&mut decoder) {
        Err(DecodeError::DepthLimitExceeded) => {
            Err(format!("its maps and lists are nested more than {MAX_DEPTH} deep"))
        }
        // Any other error is reported by the decoder of the value itself.
        _ => Ok(()),
    }
}
