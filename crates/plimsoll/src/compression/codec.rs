//! Compresses and decompresses single chunks with the codecs.
//!
//! Memory is charged to the budget before it is used. Input may be anything: a decoder writes no
//! byte beyond the chunk that it was given.

use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

#[cfg(not(feature = "zstd"))]
use crate::types::compression::no_zstd;
use crate::types::compression::{Codec, Compression, VALUE_CHUNK_BYTES};
use crate::types::error::Result;

/// Working memory of LZ4: its hash table.
const LZ4_BYTES: u64 = 16 << 10;

/// Working memory of a zstd encoder for a chunk, at any level up to 22, rounded up
/// (`encoders_stay_within_their_charge`).
#[cfg(feature = "zstd")]
const ZSTD_ENCODER_BYTES: u64 = 2 << 20;

/// Working memory of a zstd decoder, rounded up.
#[cfg(feature = "zstd")]
const ZSTD_DECODER_BYTES: u64 = 256 << 10;

/// Compresses chunks.
pub(crate) struct Encoder {
    method: Method,
    _lease: Lease,
}

enum Method {
    Lz4,
    #[cfg(feature = "zstd")]
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Encoder {
    /// An encoder; `None` if values are not compressed, or this build does not contain the codec.
    pub(crate) fn new(
        (budget, kind): (&Budget, Kind),
        compression: Compression,
    ) -> Result<Option<Self>, OutOfBudget> {
        let of = |method, lease| Some(Self { method, _lease: lease });
        Ok(match compression {
            Compression::None => None,
            Compression::Lz4 => of(Method::Lz4, budget.lease(kind, LZ4_BYTES)?),
            #[cfg(feature = "zstd")]
            Compression::Zstd(level) => {
                let lease = budget.lease(kind, ZSTD_ENCODER_BYTES)?;
                // Fails only if memory cannot be allocated.
                let compressor = zstd::bulk::Compressor::new(level).ok();
                compressor.and_then(|compressor| of(Method::Zstd(compressor), lease))
            }
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd(_) => None,
        })
    }

    /// The codec.
    pub(crate) fn codec(&self) -> Codec {
        match self.method {
            Method::Lz4 => Codec::Lz4,
            #[cfg(feature = "zstd")]
            Method::Zstd(_) => Codec::Zstd,
        }
    }

    /// The bytes that `output` must have for a chunk of `bytes`.
    pub(crate) fn output_bytes(&self, bytes: usize) -> usize {
        match self.method {
            Method::Lz4 => lz4_flex::block::get_maximum_output_size(bytes),
            #[cfg(feature = "zstd")]
            Method::Zstd(_) => zstd::zstd_safe::compress_bound(bytes),
        }
    }

    /// Compresses a chunk into the front of `output`; returns the number of bytes, or `None` if it
    /// cannot be compressed.
    pub(crate) fn encode(&mut self, chunk: &[u8], output: &mut [u8]) -> Option<usize> {
        debug_assert!(chunk.len() <= VALUE_CHUNK_BYTES);
        match &mut self.method {
            Method::Lz4 => lz4_flex::block::compress_into(chunk, output).ok(),
            #[cfg(feature = "zstd")]
            Method::Zstd(compressor) => compressor.compress_to_buffer(chunk, output).ok(),
        }
    }
}

/// Decompresses chunks.
pub(crate) struct Decoder {
    method: DecoderMethod,
}

enum DecoderMethod {
    Lz4,
    #[cfg(feature = "zstd")]
    Zstd {
        decompressor: zstd::bulk::Decompressor<'static>,
        _lease: Lease,
    },
}

impl Decoder {
    /// A decoder of a codec. `what` names the compressed thing in an error.
    ///
    /// # Errors
    /// The budget has no room, or this build does not contain the codec.
    pub(crate) fn new(memory: (&Budget, Kind), codec: Codec, what: &str) -> Result<Self> {
        let method = match codec {
            Codec::Lz4 => DecoderMethod::Lz4,
            Codec::Zstd => Self::zstd(memory, what)?,
        };
        Ok(Self { method })
    }

    #[cfg(feature = "zstd")]
    fn zstd((budget, kind): (&Budget, Kind), _: &str) -> Result<DecoderMethod> {
        let lease = budget.lease(kind, ZSTD_DECODER_BYTES)?;
        let decompressor = zstd::bulk::Decompressor::new()?;
        Ok(DecoderMethod::Zstd { decompressor, _lease: lease })
    }

    #[cfg(not(feature = "zstd"))]
    fn zstd(_: (&Budget, Kind), what: &str) -> Result<DecoderMethod> {
        Err(no_zstd(what))
    }

    /// Decompresses a chunk; `false` if it does not fill `into` exactly.
    #[must_use]
    pub(crate) fn decode(&mut self, chunk: &[u8], into: &mut [u8]) -> bool {
        let expected = into.len();
        let filled = match &mut self.method {
            DecoderMethod::Lz4 => lz4_flex::block::decompress_into(chunk, into).ok(),
            #[cfg(feature = "zstd")]
            DecoderMethod::Zstd { decompressor, .. } => {
                decompressor.decompress_to_buffer(chunk, into).ok()
            }
        };
        filled == Some(expected)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * i / 300) as u8 & 15).collect()
    }

    fn compressions() -> Vec<Compression> {
        let mut all = vec![Compression::Lz4];
        if cfg!(feature = "zstd") {
            all.extend([1, 3, 22].map(Compression::Zstd));
        }
        all
    }

    #[test]
    fn chunks_come_back_and_damaged_ones_write_nothing_beyond_their_room() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        for compression in compressions() {
            let mut encoder = Encoder::new((&budget, Kind::Staging), compression).unwrap().unwrap();
            let mut decoder =
                Decoder::new((&budget, Kind::Staging), encoder.codec(), "a value").unwrap();
            for bytes in [1, 100, 5000, VALUE_CHUNK_BYTES] {
                let chunk = text(bytes);
                let mut output = vec![0; encoder.output_bytes(bytes)];
                let len = encoder.encode(&chunk, &mut output).unwrap();
                let mut into = vec![0; bytes];
                assert!(decoder.decode(&output[..len], &mut into));
                assert_eq!(into, chunk);
                assert!(!decoder.decode(&output[..len], &mut into[1..]), "it has a byte more");
                for at in (0..len).step_by(7) {
                    let mut damaged = output[..len].to_vec();
                    damaged[at] ^= 0x40;
                    // For any input, the bytes beyond the output buffer are unchanged.
                    let mut guarded = vec![0xa5; bytes + 64];
                    let _ = decoder.decode(&damaged, &mut guarded[..bytes]);
                    assert!(guarded[bytes..].iter().all(|byte| *byte == 0xa5));
                }
            }
        }
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn encoders_stay_within_their_charge() {
        let mut largest = 0;
        for level in 1..=22 {
            let mut compressor = zstd::bulk::Compressor::new(level).unwrap();
            let chunk = text(VALUE_CHUNK_BYTES);
            let mut output = vec![0; zstd::zstd_safe::compress_bound(chunk.len())];
            compressor.compress_to_buffer(&chunk[..], &mut output[..]).unwrap();
            largest = largest.max(compressor.context_mut().sizeof());
        }
        assert!(largest as u64 <= ZSTD_ENCODER_BYTES, "{largest}");
        let decoder = zstd::zstd_safe::DCtx::create().sizeof();
        assert!(decoder as u64 <= ZSTD_DECODER_BYTES, "{decoder}");
    }
}
