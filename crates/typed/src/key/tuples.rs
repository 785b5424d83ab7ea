//! Tuples as keys: the parts follow one another.

use super::{AsKey, Key, KeyError};

/// `$of` is the type of a part; `$part` is a type that is encoded like it.
macro_rules! tuples {
    ($(($($part:ident $of:ident $at:tt),+))*) => {$(
        impl<$($of, $part: AsKey<$of>),+> AsKey<($($of,)+)> for ($($part,)+) {
            fn encode_part(&self, out: &mut Vec<u8>) {
                $(self.$at.encode_part(out);)+
            }
        }

        impl<$($of: Key),+> Key for ($($of,)+) {
            fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
                Ok(($($of::decode_part(from)?,)+))
            }
        }
    )*};
}

tuples! {
    (A KA 0)
    (A KA 0, B KB 1)
    (A KA 0, B KB 1, C KC 2)
    (A KA 0, B KB 1, C KC 2, D KD 3)
    (A KA 0, B KB 1, C KC 2, D KD 3, E KE 4)
    (A KA 0, B KB 1, C KC 2, D KD 3, E KE 4, F KF 5)
    (A KA 0, B KB 1, C KC 2, D KD 3, E KE 4, F KF 5, G KG 6)
    (A KA 0, B KB 1, C KC 2, D KD 3, E KE 4, F KF 5, G KG 6, H KH 7)
}
