//! The greeting: the first bytes in each direction. Neither side waits for the other's.
//!
//! ```text
//! bytes  "plimsync"
//! u8     role: 1 client, 2 server
//! u8     lowest supported version of the protocol
//! u8     highest supported version
//! u8     0
//! u128   id of the store; 0 from a client, and from a server that could not open its store
//! u64    checksum of the previous 28 bytes
//! ```
//!
//! Both sides use the highest version that both support.

use plimsoll_disk::checksum::checksum;

use crate::sync::wire::frames::{Input, Role, Sender, ended};
use crate::types::error::{Error, Result};

const MAGIC: &[u8; 8] = b"plimsync";
const HELLO_BYTES: usize = 36;

/// The lowest and the highest version of the protocol that this program supports.
const VERSIONS: (u8, u8) = (1, 1);

pub(super) fn send_hello(sender: &mut Sender, role: Role, store: u128) -> Result<()> {
    sender.raw(&hello(role, VERSIONS, store))
}

fn hello(role: Role, versions: (u8, u8), store: u128) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&[role as u8, versions.0, versions.1, 0]);
    bytes[12..28].copy_from_slice(&store.to_le_bytes());
    let sum = checksum(0, &bytes[..28]);
    bytes[28..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Receives the greeting of the other side. Returns the id of its store; `None` if the stream ends
/// instead.
///
/// # Errors
/// [`Error::Remote`] if the other side has another role than `expected`, or does not use this
/// protocol; [`Error::Format`] if there is no version that both support.
pub(super) fn take_hello(input: &mut Input, expected: Role) -> Result<Option<u128>> {
    let mut bytes = [0; HELLO_BYTES];
    let got = input.raw(&mut bytes)?;
    if got == 0 {
        return Ok(None);
    }
    let is_begin = bytes.starts_with(&MAGIC[..got.min(8)]);
    if is_begin && got < HELLO_BYTES {
        return Err(ended());
    }
    read(&bytes[..got], expected).map(Some)
}

fn read(bytes: &[u8], expected: Role) -> Result<u128> {
    let fields = bytes.split_last_chunk::<8>();
    let sound = fields.filter(|(head, sum)| {
        head.len() == 28
            && head.starts_with(MAGIC)
            && checksum(0, head) == u64::from_le_bytes(**sum)
    });
    let Some((head, _)) = sound else {
        return Err(Error::Remote {
            message: format!(
                "the other side sent \"{}\" instead of the greeting of `plimsoll sync-server`; \
                 check the address, and that the shell on that machine prints nothing when it \
                 starts",
                bytes.escape_ascii()
            ),
        });
    };
    if head[8] != expected as u8 {
        let message = "the other side is not a sync server, or it echoes its input; check the \
                       address";
        return Err(Error::Remote { message: message.to_owned() });
    }
    let (lowest, highest) = (head[9], head[10]);
    if lowest > VERSIONS.1 || highest < VERSIONS.0 {
        let older = if lowest > VERSIONS.1 { "this program" } else { "the other program" };
        return Err(Error::format(format!(
            "the other side supports versions {lowest} to {highest} of the sync protocol, this \
             program versions {} to {}; upgrade {older}",
            VERSIONS.0, VERSIONS.1
        )));
    }
    Ok(u128::from_le_bytes(head[12..28].try_into().expect("sixteen bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_checked() {
        let good = hello(Role::Server, VERSIONS, 7);
        assert_eq!(read(&good, Role::Server), Ok(7));
        let shown = |bytes: &[u8]| read(bytes, Role::Server).unwrap_err().to_string();
        for at in 0..HELLO_BYTES {
            let mut bytes = good;
            bytes[at] ^= 1;
            assert!(shown(&bytes).contains("instead of the greeting"), "{at}");
            assert!(shown(&good[..at]).contains("instead of the greeting"), "{at}");
        }
        assert!(shown(&hello(Role::Client, VERSIONS, 7)).contains("not a sync server"));
        assert!(shown(&hello(Role::Server, (2, 9), 7)).contains("upgrade this program"));
        assert!(shown(&hello(Role::Server, (0, 0), 7)).contains("upgrade the other program"));
        assert!(read(&hello(Role::Server, (0, 9), 7), Role::Server).is_ok());
    }
}
