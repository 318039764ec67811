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
    types::{DeviceKey, Identity, Landmark, WorkerId},
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
    pub(crate) const fn rest(&mut self) -> &'a [u8] {
        std::mem::replace(self, Self(&[])).0
    }

    /// All that is left, bounded as names are.
    fn name(&mut self) -> Result<&'a [u8]> {
        match self.rest() {
            name if name.len() <= MAX_NAME => Ok(name),
            _ => Err(malformed("a name is too long")),
        }
    }

    /// All that is left, as a list of entries that `read` reads.
    pub(crate) fn list<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        while !self.is_empty() {
            if entries.len() == MAX_ENTRIES {
                return Err(malformed("a list is too long"));
            }
            entries.push(read(self)?);
        }
        Ok(entries)
    }
}

/// What a field holds, or a part of it.
pub(crate) trait Field: PartialEq + Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it from the front of `body`: all of that, where nothing else says how long it is.
    fn read(body: &mut Reader<'_>) -> Result<Self>;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Reader<'_> {
            pub(crate) fn $type(&mut self) -> Result<$type> {
                self.array().map($type::from_le_bytes)
            }
        }

        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(body: &mut Reader<'_>) -> Result<Self> {
                body.$type()
            }
        }
    )*};
}
integers!(u8 u16 u32 u64);

/// Types that are their parts, one behind the other.
macro_rules! sequence {
    ($type:ty { $($part:tt),* }) => {
        impl $crate::util::wire::Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::util::wire::Field::put(&self.$part, out);)*
            }

            fn read(body: &mut $crate::util::wire::Reader<'_>) -> $crate::error::Result<Self> {
                Ok(Self { $($part: $crate::util::wire::Field::read(body)?),* })
            }
        }
    };
}
pub(crate) use sequence;

sequence! { WorkerId { 0 } }
sequence! { Identity { boot, net_namespace, pid_namespace, user_namespace, user, pid } }
sequence! { Landmark { address, holds } }
sequence! { DeviceKey { device, key } }

impl<const N: usize> Field for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        body.array()
    }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        body.bool()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.put(out));
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        T::read(body).map(Some)
    }
}

impl Field for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        Ok(body.rest().to_vec())
    }
}

/// A name of up to [`MAX_NAME`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(crate) Vec<u8>);

impl Field for Name {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        Ok(Self(body.name()?.to_vec()))
    }
}

/// Cut after [`MAX_NAME`] bytes.
impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        let end = self.floor_char_boundary(MAX_NAME);
        out.extend_from_slice(&self.as_bytes()[..end]);
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        let text = str::from_utf8(body.name()?).map_err(|_| malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }
}

/// Without what is past the bounds: nothing that a peer could agree to.
impl Field for Vec<String> {
    fn put(&self, out: &mut Vec<u8>) {
        let fit = self.iter().filter(|text| text.len() <= MAX_NAME);
        for text in fit.take(MAX_ENTRIES) {
            out.push(text.len() as u8);
            text.put(out);
        }
    }

    fn read(body: &mut Reader<'_>) -> Result<Self> {
        body.list(|body| {
            let length = body.u8()?;
            Reader(body.bytes(length.into())?).whole(String::read)
        })
    }
}

/// A struct whose fields go as fields of these ids, in this order. `or` says what an absent one is,
/// which is then not sent; without it a field has to be there.
macro_rules! fields {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $of:vis $field:ident: $type:ty = $id:literal $(or $absent:expr)?,)*
    }) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$doc])* $of $field: $type,)* }

        impl $name {
            pub(crate) fn encode_fields(&self) -> Vec<u8> {
                let mut out = Vec::new();
                $($crate::util::wire::put(
                    &mut out,
                    $id,
                    &self.$field,
                    None$(.or(Some($absent)))?,
                );)*
                out
            }

            /// # Errors
            /// `Malformed`, and what a field's type says.
            pub(crate) fn decode_fields(bytes: &[u8]) -> $crate::error::Result<Self> {
                $crate::util::wire::read_fields!(
                    bytes as Self { $($field = $id $(or $absent)?),* }
                )
            }
        }
    };
}
pub(crate) use fields;

/// What `fields` are made into, which may be a variant. Ids that are not known are skipped.
macro_rules! read_fields {
    ($bytes:ident as $($made:ident)::+ { $($field:ident = $id:literal $(or $absent:expr)?),* }) => {{
        let mut fields = $crate::util::wire::Reader::new($bytes);
        $(let mut $field = None;)*
        while let Some(field) = fields.field()? {
            match field.0 {
                $($id => $crate::util::wire::once(&mut $field, field.1)?,)*
                _ => {}
            }
        }
        Ok($($made)::+ {
            $($field: $crate::util::wire::required($field$(.or(Some($absent)))?)?,)*
        })
    }};
}
pub(crate) use read_fields;

/// Appends a field, unless it is what an absent one is.
pub(crate) fn put<T: Field>(out: &mut Vec<u8>, id: u16, value: &T, absent: Option<T>) {
    if absent.as_ref() != Some(value) {
        let mut body = Vec::new();
        value.put(&mut body);
        put_field(out, id, &body);
    }
}

/// Appends a field. The callers' bounds keep `bytes` below 64 KiB.
pub(crate) fn put_field(out: &mut Vec<u8>, id: u16, bytes: &[u8]) {
    debug_assert!(
        bytes.len() <= usize::from(u16::MAX),
        "fields are bounded by their callers"
    );
    id.put(out);
    (bytes.len() as u16).put(out);
    out.extend_from_slice(bytes);
}

/// Fills in a field that may come once.
pub(crate) fn once<T: Field>(place: &mut Option<T>, body: Reader<'_>) -> Result<()> {
    match place.replace(body.whole(T::read)?) {
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
/// Errors: `Malformed` when any byte was changed or is missing; `VersionMismatch` for an intact envelope of another version.
pub(crate) fn open<'a>(
    magic: [u8; 4],
    version: u16,
    what: &str,
    bytes: &'a [u8],
) -> Result<&'a [u8]> {
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
    sealed.get(ENVELOPE_HEAD..).ok_or_else(cut_short)
}

#[cold]
pub(crate) fn malformed(message: &'static str) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

#[cold]
fn cut_short() -> Error {
    malformed("the input is cut short")
}

/// A stranger's words as they may stand in errors and logs: on one line, and nothing in them that a terminal would follow.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' | '\'' => out.push(char),
            _ => out.extend(char.escape_debug()),
        }
    }
    out
}

/// A peer's reason, which need not be text: the first of it, without control characters.
pub(crate) fn legible(reason: &[u8]) -> String {
    let text = String::from_utf8_lossy(reason);
    let shown = text.chars().filter(|char| !char.is_control());
    shown.take(512).collect()
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

    /// One whose every byte has its own place.
    pub(crate) fn identity() -> Identity {
        Identity {
            boot: *b"0123456789abcdef",
            net_namespace: 0x0102_0304_0506_0708,
            pid_namespace: 0x1112_1314_1516_1718,
            user_namespace: 0x2122_2324_2526_2728,
            user: 0x3132_3334,
            pid: 0x4142_4344,
        }
    }

    pub(crate) fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
        let texts = |bytes: &[u8]| Vec::<String>::read(&mut Reader::new(bytes));
        names.put(&mut out);
        assert_eq!(texts(&out).unwrap(), names[..MAX_ENTRIES]);
        assert!(texts(&[0; MAX_ENTRIES]).is_ok());
        assert!(texts(&[0; MAX_ENTRIES + 1]).is_err());

        out.clear();
        vec!["x".repeat(MAX_NAME + 1), "y".repeat(MAX_NAME)].put(&mut out);
        assert_eq!(texts(&out).unwrap(), ["y".repeat(MAX_NAME)]);
        for length in [MAX_NAME, MAX_NAME + 1] {
            let name = vec![b'z'; length];
            let fits = length == MAX_NAME;
            assert_eq!(Name::read(&mut Reader::new(&name)).is_ok(), fits);
            assert_eq!(String::read(&mut Reader::new(&name)).is_ok(), fits);
        }
    }

    fields! {
        #[derive(Debug, PartialEq)]
        struct Record {
            needed: u16 = 1,
            list: Vec<u8> = 2 or vec![7],
            flag: Option<[u8; 0]> = 3 or None,
        }
    }

    #[test]
    fn fields_come_once_whole_and_may_be_absent_where_that_is_said() {
        let fields = |fields: &[(u16, &[u8])]| {
            let mut out = Vec::new();
            for (id, body) in fields {
                put_field(&mut out, *id, body);
            }
            out
        };
        let read = |of: &[(u16, &[u8])]| Record::decode_fields(&fields(of));
        let record = |list, flag| Record {
            needed: 5,
            list,
            flag,
        };
        let least = record(vec![7], None);
        let most = record(Vec::new(), Some([]));
        assert_eq!(least.encode_fields(), fields(&[(1, &[5, 0])]));
        assert_eq!(
            most.encode_fields(),
            fields(&[(1, &[5, 0]), (2, &[]), (3, &[])])
        );
        assert_eq!(read(&[(1, &[5, 0])]).unwrap(), least);
        assert_eq!(
            read(&[(3, &[]), (9, &[1]), (2, &[]), (1, &[5, 0])]).unwrap(),
            most
        );
        let refused = |of, why: &str| assert_eq!(read(of).unwrap_err().to_string(), why);
        refused(&[(2, &[])], "a field is missing");
        refused(&[(1, &[5, 0]), (1, &[5, 0])], "a field comes twice");
        refused(&[(1, &[5, 0, 0])], "bytes are left over");
        refused(&[(1, &[5, 0]), (3, &[0])], "bytes are left over");
        refused(&[(1, &[5])], "the input is cut short");
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
