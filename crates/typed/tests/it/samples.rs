//! Random keys of every type, with a preference for the values at which encodings go wrong.

use std::cmp::Ordering;
use std::fmt::Debug;

use fastrand::Rng;
use plimsoll_typed::Key;

/// A key type with random keys and its order.
pub(crate) trait Sample: Key + Debug {
    fn sample(rng: &mut Rng) -> Self;
    fn order(&self, other: &Self) -> Ordering;
}

/// `$unsigned` is the type of the bits.
macro_rules! integers {
    ($($int:ident $unsigned:ident;)*) => {$(
        impl Sample for $int {
            fn sample(rng: &mut Rng) -> Self {
                let small = rng.u8(0..4) as $int;
                match rng.u8(0..5) {
                    0 => small,
                    1 => <$int>::MAX - small,
                    2 => <$int>::MIN + small,
                    // Around a power of two, where a byte carries over.
                    3 => (1 as $int).wrapping_shl(rng.u32(0..128)).wrapping_sub(small),
                    _ => rng.$unsigned(..) as $int,
                }
            }

            fn order(&self, other: &Self) -> Ordering {
                self.cmp(other)
            }
        }
    )*};
}

integers! {
    u8 u8;
    u16 u16;
    u32 u32;
    u64 u64;
    u128 u128;
    i8 u8;
    i16 u16;
    i32 u32;
    i64 u64;
    i128 u128;
}

impl Sample for f32 {
    fn sample(rng: &mut Rng) -> Self {
        let edges = [0.0, 1.0, Self::MIN_POSITIVE, Self::MAX, Self::INFINITY, Self::NAN];
        let edge = rng.choice(edges).unwrap().copysign(rng.choice([1.0, -1.0]).unwrap());
        if rng.bool() { edge } else { Self::from_bits(rng.u32(..)) }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
}

impl Sample for f64 {
    fn sample(rng: &mut Rng) -> Self {
        let edges = [0.0, 1.0, Self::MIN_POSITIVE, Self::MAX, Self::INFINITY, Self::NAN];
        let edge = rng.choice(edges).unwrap().copysign(rng.choice([1.0, -1.0]).unwrap());
        if rng.bool() { edge } else { Self::from_bits(rng.u64(..)) }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
}

impl Sample for bool {
    fn sample(rng: &mut Rng) -> Self {
        rng.bool()
    }

    fn order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }
}

impl Sample for char {
    fn sample(rng: &mut Rng) -> Self {
        let edges =
            ['\0', '\u{1}', '\u{7f}', '\u{80}', '\u{d7ff}', '\u{e000}', '\u{ffff}', char::MAX];
        if rng.bool() { rng.choice(edges).unwrap() } else { rng.char(..) }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }
}

/// Short, and often equal at the beginning, so that ends and zero bytes decide the order.
impl Sample for Vec<u8> {
    fn sample(rng: &mut Rng) -> Self {
        let byte = |rng: &mut Rng| rng.choice([0, 0, 1, 2, b'a', 0xFE, 0xFF]).unwrap();
        (0..rng.usize(0..5)).map(|_| byte(rng)).collect()
    }

    fn order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }
}

impl Sample for String {
    fn sample(rng: &mut Rng) -> Self {
        let char = |rng: &mut Rng| rng.choice(['\0', '\0', '\u{1}', 'a', 'ÿ', char::MAX]).unwrap();
        (0..rng.usize(0..5)).map(|_| char(rng)).collect()
    }

    fn order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }
}

impl<const N: usize> Sample for [u8; N] {
    fn sample(rng: &mut Rng) -> Self {
        std::array::from_fn(|_| rng.choice([0, 1, 0xFF]).unwrap())
    }

    fn order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }
}

impl<K: Sample> Sample for Option<K> {
    fn sample(rng: &mut Rng) -> Self {
        (rng.u8(0..4) > 0).then(|| K::sample(rng))
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Some(a), Some(b)) => a.order(b),
            _ => self.is_some().cmp(&other.is_some()),
        }
    }
}

macro_rules! tuples {
    ($(($($of:ident $at:tt),+))*) => {$(
        impl<$($of: Sample),+> Sample for ($($of,)+) {
            fn sample(rng: &mut Rng) -> Self {
                ($($of::sample(rng),)+)
            }

            fn order(&self, other: &Self) -> Ordering {
                Ordering::Equal$(.then_with(|| self.$at.order(&other.$at)))+
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
