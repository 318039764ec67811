//! The bytes of a measurement, in memory of any kind: allocated, filled, looked at.

use std::fmt;
use std::str::FromStr;

use wharf::{Buffer, BufferMut, Context, MemoryType, Worker};

use super::Outcome;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Ordinary memory of the program.
    Host,
    /// Host memory that the library allocated, so that others on this host can map it.
    Allocated,
    /// Memory that a driver allocates.
    Typed(MemoryType),
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, index.parse().ok()),
            None => (text, Some(0)),
        };
        let typed = match (name, index) {
            ("host", Some(0)) => return Ok(Self::Host),
            ("allocated", Some(0)) => return Ok(Self::Allocated),
            ("host-pinned" | "cuda-host", Some(0)) => MemoryType::HostPinned,
            ("cuda", Some(index)) => MemoryType::Cuda(index),
            ("cuda-managed", Some(0)) => MemoryType::CudaManaged,
            ("rocm", Some(index)) => MemoryType::Rocm(index),
            ("rocm-managed", Some(0)) => MemoryType::RocmManaged,
            ("gaudi", Some(index)) => MemoryType::Gaudi(index),
            _ => {
                return Err(format!(
                    "no memory type \"{text}\" (there are host, allocated, host-pinned, cuda[:N], cuda-managed, rocm[:N], rocm-managed, gaudi[:N])"
                ));
            }
        };
        Ok(Self::Typed(typed))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Allocated => f.write_str("allocated"),
            Self::Typed(kind) => kind.fmt(f),
        }
    }
}

impl Memory {
    /// Whether the host reads and writes it.
    pub(super) fn is_host(self) -> bool {
        match self {
            Self::Typed(kind) => kind.is_host_accessible(),
            _ => true,
        }
    }

    /// The name in configuration of all transports that serve it.
    pub(super) fn family(self) -> Option<&'static str> {
        match self {
            Self::Typed(MemoryType::Rocm(_) | MemoryType::RocmManaged) => Some("rocm"),
            Self::Typed(MemoryType::Gaudi(_)) => Some("gaudi"),
            Self::Typed(_) => Some("cuda"),
            _ => None,
        }
    }

    /// How it is called in a result: an emulated driver, which is known by its library's name, is called that.
    pub(super) fn label(self) -> String {
        let library = match self.family() {
            Some("cuda") => "WHARF_LIBCUDA",
            Some("rocm") => "WHARF_LIBHSA",
            Some("gaudi") => "WHARF_LIBHLTHUNK",
            _ => return self.to_string(),
        };
        match std::env::var(library) {
            Ok(path) if path.contains("emulated") => format!("{self} (emulated)"),
            _ => self.to_string(),
        }
    }

    /// Room for `len` bytes.
    pub(super) async fn allocate(self, context: &Context, len: usize) -> Outcome<BufferMut> {
        Ok(match self {
            Self::Host => {
                let mut bytes = Vec::new();
                bytes
                    .try_reserve_exact(len)
                    .map_err(|_| format!("no memory for {len} bytes"))?;
                // Written once, so that no page is met for the first time while the clock runs.
                bytes.resize(len, 1_u8);
                bytes.into()
            }
            _ if len == 0 => BufferMut::from(Vec::new()),
            Self::Allocated => {
                let mut buffer = context.allocate(len).await?;
                buffer.fill(1);
                buffer.into()
            }
            Self::Typed(kind) => match context.allocate_on(kind, len).await {
                Ok(buffer) => buffer,
                Err(error) => return Err(self.with_reasons(context, &error).into()),
            },
        })
    }

    /// The error, and why what serves this memory is not there.
    fn with_reasons(self, context: &Context, error: &wharf::Error) -> String {
        let mut text = error.to_string();
        let family = self.family().unwrap_or_default();
        for (name, why) in context.unavailable() {
            if name.starts_with(family) {
                text.push_str(&format!("; {name}: {why}"));
            }
        }
        text
    }

    /// A buffer with these bytes.
    pub(super) async fn filled(
        self,
        context: &Context,
        worker: &Worker,
        bytes: &[u8],
    ) -> Outcome<BufferMut> {
        let buffer = self.allocate(context, bytes.len()).await?;
        fill(worker, buffer, bytes).await
    }
}

/// Writes all of a buffer.
pub(super) async fn fill(
    worker: &Worker,
    mut buffer: BufferMut,
    bytes: &[u8],
) -> Outcome<BufferMut> {
    if bytes.is_empty() {
        return Ok(buffer);
    }
    if let Some(slice) = buffer.as_mut_slice() {
        slice[..bytes.len()].copy_from_slice(bytes);
        return Ok(buffer);
    }
    let copied = worker.copy(bytes.to_vec(), buffer).await;
    copied.map_err(|error| error.into_parts().0.into())
}

/// The first `len` bytes of a buffer, which comes back.
pub(super) async fn look(
    worker: &Worker,
    buffer: BufferMut,
    len: usize,
) -> Outcome<(BufferMut, Vec<u8>)> {
    if let Some(slice) = buffer.as_slice() {
        let bytes = slice
            .get(..len)
            .ok_or("a message longer than its buffer")?
            .to_vec();
        return Ok((buffer, bytes));
    }
    let frozen = buffer.freeze();
    let bytes = if len == 0 {
        Vec::new()
    } else {
        let copied = worker.copy(frozen.slice(..len), vec![0; len]).await;
        copied.map_err(|error| error.into_parts().0)?
    };
    let buffer = frozen
        .try_into_mut()
        .map_err(|_: Buffer| "a buffer that is still in use")?;
    Ok((buffer, bytes))
}

/// What message `number` of a direction holds.
pub(super) fn pattern(direction: u8, number: u64, len: usize) -> Vec<u8> {
    let start = (number.wrapping_mul(31) as u8).wrapping_add(direction.wrapping_mul(85));
    (0..len)
        .map(|at| {
            start
                .wrapping_add((at as u8).wrapping_mul(7))
                .wrapping_add((at >> 8) as u8)
        })
        .collect()
}

/// Whether these bytes are what they should be.
pub(super) fn verify(what: &str, number: u64, found: &[u8], wanted: &[u8]) -> Outcome<()> {
    if found == wanted {
        return Ok(());
    }
    if found.len() != wanted.len() {
        return Err(format!(
            "{what} {number} has {} bytes instead of {}",
            found.len(),
            wanted.len()
        )
        .into());
    }
    let at = found
        .iter()
        .zip(wanted)
        .position(|(one, other)| one != other)
        .unwrap_or(0);
    Err(format!(
        "{what} {number} is not what was sent: byte {at} of {} is {:#04x} instead of {:#04x}",
        wanted.len(),
        found[at],
        wanted[at]
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "host",
            "allocated",
            "host-pinned",
            "cuda:1",
            "cuda-managed",
            "rocm:0",
            "gaudi:2",
        ] {
            assert_eq!(
                name.parse::<Memory>()
                    .map(|memory| memory.to_string())
                    .as_deref(),
                Ok(name)
            );
        }
        assert_eq!("cuda".parse(), Ok(Memory::Typed(MemoryType::Cuda(0))));
        for bad in ["", "host:1", "cuda:x", "cuda:-1", "vram"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }

    #[test]
    fn wrong_content_is_seen() {
        let sent = pattern(0, 5, 300);
        assert!(verify("message", 5, &sent, &pattern(0, 5, 300)).is_ok());
        for other in [pattern(0, 6, 300), pattern(1, 5, 300), pattern(0, 5, 299)] {
            assert!(verify("message", 5, &other, &sent).is_err());
        }
    }
}
