//! What all status codes have, whatever the library.

/// For a newtype `$Status` of a number with `fn known(self) -> Option<(name, kind, phrase)>` and `Display`: its kind, and errors that stem from it.
macro_rules! status {
    ($Status:ident, success: $success:expr) => {
        impl $Status {
            /// What it is for a caller who branches on kinds.
            pub(crate) const fn kind(self) -> $crate::error::ErrorKind {
                match self.known() {
                    Some((_, kind, _)) => kind,
                    None => $crate::error::ErrorKind::Io,
                }
            }

            /// Success, or the error of `call`, by its exported name.
            ///
            /// # Errors
            #[doc = concat!("Of the kind of the status; the status itself is the source ([`", stringify!($Status), "::of`]).")]
            pub(crate) fn check(self, call: &str) -> $crate::error::Result<()> {
                if self == $success {
                    return Ok(());
                }
                Err(self.error(call))
            }

            /// The error of `call` that ended with this status.
            #[cold]
            pub(crate) fn error(self, call: &str) -> $crate::error::Error {
                $crate::error::Error::new(self.kind(), format!("{call}: {self}")).with_source(self)
            }

            /// The status that an error stems from, if it stems from one.
            #[allow(dead_code, reason = "not asked of every library")]
            pub(crate) fn of(error: &$crate::error::Error) -> Option<Self> {
                error.get_ref()?.downcast_ref::<Self>().copied()
            }
        }

        impl ::std::fmt::Debug for $Status {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }

        impl ::std::error::Error for $Status {}
    };
}

/// Names, numbers, kinds and phrases of a newtype `Status`: a constant for each, and `fn known`.
macro_rules! statuses {
    ($( $name:ident = $code:literal, $kind:ident, $phrase:literal; )+) => {
        #[allow(dead_code, reason = "the names of the header, whether somebody compares with them or not")]
        impl Status {
            $( #[doc = concat!("`", stringify!($name), "`: ", $phrase, ".")]
            pub(crate) const $name: Self = Self($code); )+

            /// The name in the header, kind and phrase.
            const fn known(self) -> Option<(&'static str, ErrorKind, &'static str)> {
                match self.0 {
                    $( $code => Some((stringify!($name), ErrorKind::$kind, $phrase)), )+
                    _ => None,
                }
            }
        }
    };
}
pub(super) use {status, statuses};
