//! Message tags and the masks that receives compare them under.

/// The 64-bit tag of a tagged message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "ucp_tag_t")]
pub struct Tag(pub u64);

/// Which bits of a tag a receive compares: a message matches when `message & mask == wanted & mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mask(pub u64);

impl Mask {
    /// Every bit counts: only the exact tag matches.
    pub const ALL: Self = Self(u64::MAX);
    /// No bit counts: any message matches.
    pub const NONE: Self = Self(0);

    /// Whether a message sent under `message` is one that a receive of `wanted` takes.
    #[inline]
    #[must_use]
    pub const fn matches(self, wanted: Tag, message: Tag) -> bool {
        (wanted.0 ^ message.0) & self.0 == 0
    }
}
