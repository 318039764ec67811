//! Words of the interface for serde: numbers as numbers, what has a text as that, and what is bytes as bytes where the format is not for people.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde_core::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use super::{AmId, EndpointId, LinkId, Mask, MemoryType, Tag, WorkerId};

macro_rules! as_numbers {
    ($($Type:ident)+) => {$(
        impl Serialize for $Type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $Type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Deserialize::deserialize(deserializer).map(Self)
            }
        }
    )+};
}

macro_rules! as_text {
    ($($Type:ident)+) => {$(
        impl serde_core::Serialize for $Type {
            fn serialize<S: serde_core::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde_core::Deserialize<'de> for $Type {
            fn deserialize<D: serde_core::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                deserializer.deserialize_str($crate::types::serial::Text::<Self>::new())
            }
        }
    )+};
}
pub(crate) use as_text;

/// `to` and `from` bytes.
macro_rules! as_bytes {
    ($Type:ident: $to:expr, $from:expr) => {
        impl serde_core::Serialize for $Type {
            fn serialize<S: serde_core::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => serializer.serialize_bytes(&$to(self)),
                }
            }
        }

        impl<'de> serde_core::Deserialize<'de> for $Type {
            fn deserialize<D: serde_core::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                match deserializer.is_human_readable() {
                    true => {
                        deserializer.deserialize_str($crate::types::serial::Text::<Self>::new())
                    }
                    false => deserializer.deserialize_bytes($crate::types::serial::Bytes($from)),
                }
            }
        }
    };
}
pub(crate) use as_bytes;

/// What is parsed.
pub(crate) struct Text<T>(PhantomData<T>);

impl<T> Text<T> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// What is made from bytes.
pub(crate) struct Bytes<F>(pub(crate) F);

impl<T, R: fmt::Display, F: FnOnce(&[u8]) -> Result<T, R>> Visitor<'_> for Bytes<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        self.0(bytes).map_err(E::custom)
    }
}

as_numbers! { Tag Mask EndpointId AmId LinkId }
as_text! { MemoryType }
as_bytes! { WorkerId: |id: &Self| id.0, |bytes: &[u8]| bytes.try_into().map(Self) }
