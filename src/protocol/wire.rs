//! The parts that wire formats are made of: a reader that never goes past the end, fields that can be skipped, and a sealed
//! envelope for what programs pass to each other.
//!
//! ```text
//! field      id u16 | length u16 | bytes                        ids that are not known are skipped
//! envelope   magic 4 | version u16 | length u16 | fields | crc32 of all before it
//! ```
//!
//! A length that leaves the input, a field that comes twice and bytes that are left over are errors of kind `Malformed`.

use crate::{
    error::{Error, ErrorKind, Result},
    types::{Identity, WorkerId},
};

/// Most entries of a list.
pub(crate) const MAX_ENTRIES: usize = 64;
/// Longest string or name, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// Takes bytes from the front of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("a flag is neither 0 nor 1")),
        }
    }

    /// The next field, or `None` at the end.
    pub(crate) fn field(&mut self) -> Result<Option<(u16, Self)>> {
        if self.is_empty() {
            return Ok(None);
        }
        let id = self.u16()?;
        let length = self.u16()?;
        Ok(Some((id, Self(self.bytes(length.into())?))))
    }

    /// Says that all has been read.
    pub(crate) fn end(self) -> Result<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(malformed("bytes are left over"))
        }
    }

    /// All that is left, read by `read`.
    pub(crate) fn whole<T>(mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let value = read(&mut self)?;
        self.end()?;
        Ok(value)
    }

    /// All that is left.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// All that is left, as a name.
    pub(crate) fn name(self) -> Result<Vec<u8>> {
        if self.0.len() > MAX_NAME {
            return Err(malformed("a name is too long"));
        }
        Ok(self.0.to_vec())
    }

    /// All that is left, as text.
    pub(crate) fn text(self) -> Result<String> {
        String::from_utf8(self.name()?).map_err(|_| malformed("a text is not UTF-8"))
    }

    /// All that is left, as a list of entries that `read` reads.
    pub(crate) fn list<T>(mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        while !self.is_empty() {
            if entries.len() == MAX_ENTRIES {
                return Err(malformed("a list is too long"));
            }
            entries.push(read(&mut self)?);
        }
        Ok(entries)
    }

    /// All that is left, as a list of texts.
    pub(crate) fn texts(self) -> Result<Vec<String>> {
        self.list(|reader| {
            let length = reader.u8()?;
            Self(reader.bytes(length.into())?).text()
        })
    }

    pub(crate) fn worker(&mut self) -> Result<WorkerId> {
        self.array().map(WorkerId)
    }

    pub(crate) fn identity(&mut self) -> Result<Identity> {
        Ok(Identity {
            boot: self.array()?,
            net_namespace: self.u64()?,
            pid_namespace: self.u64()?,
            user_namespace: self.u64()?,
            user: self.u32()?,
            pid: self.u32()?,
        })
    }
}

/// Appends a field. The callers' bounds keep `bytes` below 64 KiB.
pub(crate) fn put_field(out: &mut Vec<u8>, id: u16, bytes: &[u8]) {
    debug_assert!(
        bytes.len() <= usize::from(u16::MAX),
        "fields are bounded by their callers"
    );
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a field with a list of texts. Leaves out what is past the bounds: nothing that a peer could agree to.
pub(crate) fn put_texts(out: &mut Vec<u8>, id: u16, texts: &[String]) {
    let mut list = Vec::new();
    for text in texts
        .iter()
        .filter(|text| text.len() <= MAX_NAME)
        .take(MAX_ENTRIES)
    {
        list.push(text.len() as u8);
        list.extend_from_slice(text.as_bytes());
    }
    put_field(out, id, &list);
}

/// An identity as [`Reader::identity`] reads it.
pub(crate) fn identity_bytes(identity: &Identity) -> Vec<u8> {
    let mut out = Vec::with_capacity(48);
    out.extend_from_slice(&identity.boot);
    out.extend_from_slice(&identity.net_namespace.to_le_bytes());
    out.extend_from_slice(&identity.pid_namespace.to_le_bytes());
    out.extend_from_slice(&identity.user_namespace.to_le_bytes());
    out.extend_from_slice(&identity.user.to_le_bytes());
    out.extend_from_slice(&identity.pid.to_le_bytes());
    out
}

/// Fills in a field that may come once.
pub(crate) fn once<T>(place: &mut Option<T>, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(malformed("a field comes twice")),
    }
}

/// A field that has to be there.
pub(crate) fn required<T>(value: Option<T>) -> Result<T> {
    value.ok_or_else(|| malformed("a field is missing"))
}

/// Bytes of an envelope around its fields.
const ENVELOPE_HEAD: usize = 8;
const ENVELOPE_TAIL: usize = 4;

/// Puts fields into an envelope.
pub(crate) fn seal(magic: [u8; 4], version: u16, fields: &[u8]) -> Vec<u8> {
    let length = ENVELOPE_HEAD + fields.len() + ENVELOPE_TAIL;
    debug_assert!(
        length <= usize::from(u16::MAX),
        "envelopes are bounded by their callers"
    );
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&(length as u16).to_le_bytes());
    out.extend_from_slice(fields);
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Takes the fields out of an envelope, after all that the envelope says was checked.
///
/// # Errors
/// `Malformed` when any byte was changed or is missing; `VersionMismatch` for an intact envelope of another version.
pub(crate) fn open<'a>(
    magic: [u8; 4],
    version: u16,
    what: &str,
    bytes: &'a [u8],
) -> Result<Reader<'a>> {
    let mut head = Reader::new(bytes);
    if head.array()? != magic {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("these bytes are not a {what}"),
        ));
    }
    let found = head.u16()?;
    if usize::from(head.u16()?) != bytes.len() {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("the {what} is cut short or has bytes behind it"),
        ));
    }
    let (sealed, sum) = bytes
        .split_last_chunk::<ENVELOPE_TAIL>()
        .ok_or_else(cut_short)?;
    if crc32fast::hash(sealed) != u32::from_le_bytes(*sum) {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("the checksum of the {what} is wrong"),
        ));
    }
    if found != version {
        return Err(Error::new(
            ErrorKind::VersionMismatch,
            format!("the {what} has version {found}, this side reads version {version}"),
        ));
    }
    sealed
        .get(ENVELOPE_HEAD..)
        .map(Reader::new)
        .ok_or_else(cut_short)
}

#[cold]
pub(crate) fn malformed(message: &'static str) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

#[cold]
fn cut_short() -> Error {
    malformed("the input is cut short")
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn workers() -> impl Strategy<Value = WorkerId> {
        any::<[u8; 16]>().prop_map(WorkerId)
    }

    pub(crate) fn identities() -> impl Strategy<Value = Identity> {
        any::<([u8; 16], u64, u64, u64, u32, u32)>().prop_map(
            |(boot, net_namespace, pid_namespace, user_namespace, user, pid)| Identity {
                boot,
                net_namespace,
                pid_namespace,
                user_namespace,
                user,
                pid,
            },
        )
    }

    pub(crate) fn names() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-z0-9é]{0,20}", 0..6)
    }

    /// Every truncation of `bytes` is refused.
    pub(crate) fn refuses_truncation<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T>) {
        for length in 0..bytes.len() {
            assert!(
                decode(&bytes[..length]).is_err(),
                "{length} of {} bytes were taken",
                bytes.len()
            );
        }
    }

    /// Every change of one byte is refused as malformed.
    pub(crate) fn refuses_flips<T>(bytes: &[u8], change: u8, decode: impl Fn(&[u8]) -> Result<T>) {
        let mut bytes = bytes.to_vec();
        for at in 0..bytes.len() {
            bytes[at] ^= change;
            let kind = decode(&bytes).err().map(|error| error.kind());
            assert_eq!(
                kind,
                Some(ErrorKind::Malformed),
                "byte {at} was changed by {change:#x}"
            );
            bytes[at] ^= change;
        }
    }

    /// The envelope with one more field, of an id that nobody knows, in front of its own.
    pub(crate) fn with_unknown_field(sealed: &[u8], unknown: &[u8]) -> Vec<u8> {
        let magic = *sealed.first_chunk().unwrap();
        let version = u16::from_le_bytes([sealed[4], sealed[5]]);
        let mut fields = Vec::new();
        put_field(&mut fields, 0x7fff, unknown);
        fields.extend_from_slice(&sealed[ENVELOPE_HEAD..sealed.len() - ENVELOPE_TAIL]);
        seal(magic, version, &fields)
    }

    #[test]
    fn lists_are_bounded() {
        let mut out = Vec::new();
        let names: Vec<String> = (0..100)
            .map(|number| number.to_string())
            .chain([String::new()])
            .collect();
        put_texts(&mut out, 1, &names);
        let (id, field) = Reader::new(&out).field().unwrap().unwrap();
        assert_eq!(id, 1);
        assert_eq!(field.texts().unwrap(), names[..MAX_ENTRIES]);
        assert!(Reader::new(&[0; MAX_ENTRIES]).texts().is_ok());
        assert!(Reader::new(&[0; MAX_ENTRIES + 1]).texts().is_err());

        out.clear();
        put_texts(
            &mut out,
            1,
            &["x".repeat(MAX_NAME + 1), "y".repeat(MAX_NAME)],
        );
        let (_, field) = Reader::new(&out).field().unwrap().unwrap();
        assert_eq!(field.texts().unwrap(), ["y".repeat(MAX_NAME)]);
    }

    #[test]
    fn an_intact_envelope_of_another_version_says_so() {
        let sealed = seal(*b"TEST", 9, &[]);
        assert_eq!(
            open(*b"TEST", 1, "test", &sealed).unwrap_err().kind(),
            ErrorKind::VersionMismatch
        );
        assert_eq!(
            open(*b"TSET", 9, "test", &sealed).unwrap_err().kind(),
            ErrorKind::Malformed
        );
        assert!(open(*b"TEST", 9, "test", &sealed).unwrap().is_empty());
    }
}
