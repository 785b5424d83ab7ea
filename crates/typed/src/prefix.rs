//! Prefixes of keys: the first parts of a tuple, the beginning of a string.

use crate::key::AsKey;

/// The beginning of a key of type `K`: a tuple with fewer parts, or the beginning of a text or byte
/// string.
///
/// ```
/// # use plimsoll::{Db, Options};
/// # use plimsoll_typed::TypedKeyspace;
/// # fn main() -> plimsoll_typed::Result<()> {
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let moons: TypedKeyspace<(String, u8, String), u32> = TypedKeyspace::open(&db, "moons")?;
/// db.transact(|tx| {
///     moons.put(tx, ("Mars", 1, "Phobos"), &11)?;
///     moons.put(tx, ("Mars", 2, "Deimos"), &6)?;
///     moons.put(tx, ("Marsyas", 1, "none"), &0)
/// })?;
/// let now = db.snapshot();
/// assert_eq!(moons.prefix(&now, ("Mars",))?.count(), 2);
/// assert_eq!(moons.prefix(&now, ("Mars", 2))?.count(), 1);
///
/// let words: TypedKeyspace<String, ()> = TypedKeyspace::open(&db, "words")?;
/// db.transact(|tx| words.put(tx, "plimsoll", &()))?;
/// assert_eq!(words.prefix(&db.snapshot(), "plim")?.count(), 1);
/// # Ok(())
/// # }
/// ```
pub trait PrefixOf<K> {
    /// Appends the encoded prefix. The encodings of all keys with this prefix begin with these
    /// bytes, and those of no other keys do.
    fn encode_prefix(&self, out: &mut Vec<u8>);
}

/// The bytes of a prefix.
pub(crate) fn encoded_prefix<K>(prefix: &impl PrefixOf<K>) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    prefix.encode_prefix(&mut out);
    out
}

impl<K, P: PrefixOf<K> + ?Sized> PrefixOf<K> for &P {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        (**self).encode_prefix(out);
    }
}

impl PrefixOf<String> for str {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

impl PrefixOf<String> for String {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

impl PrefixOf<Vec<u8>> for [u8] {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl PrefixOf<Vec<u8>> for Vec<u8> {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> PrefixOf<Vec<u8>> for [u8; N] {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

/// Implements [`PrefixOf`] for a tuple of the first listed parts, and for each longer tuple that
/// adds parts after `;`.
macro_rules! prefixes {
    (($($part:ident $of:ident),+;)) => {};
    (($($part:ident $of:ident),+; $next:ident $next_of:ident $(, $more:ident $more_of:ident)*)) => {
        impl<$($of, $part: AsKey<$of>,)+ $next_of, $($more_of),*>
            PrefixOf<($($of,)+ $next_of, $($more_of,)*)> for ($($part,)+)
        {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                // A tuple is encoded as one part after the other, and each part has an end.
                AsKey::<($($of,)+)>::encode_part(self, out);
            }
        }

        prefixes!(($($part $of,)+ $next $next_of; $($more $more_of),*));
    };
}

prefixes!((A KA; B KB));
prefixes!((A KA; B KB, C KC));
prefixes!((A KA; B KB, C KC, D KD));
prefixes!((A KA; B KB, C KC, D KD, E KE));
prefixes!((A KA; B KB, C KC, D KD, E KE, F KF));
prefixes!((A KA; B KB, C KC, D KD, E KE, F KF, G KG));
prefixes!((A KA; B KB, C KC, D KD, E KE, F KF, G KG, H KH));
