//! A value with where it came from, and what is said where it is impossible.

use std::{fmt, ops::Deref, str::FromStr};

use super::variables::Variable;
use crate::error::{Error, ErrorKind, Operation};

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nobody asked for anything else.
    Default,
    /// The program, by the builder.
    Builder,
    /// This variable.
    Env(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Builder => f.write_str("builder"),
            Self::Env(name) => f.write_str(name),
        }
    }
}

impl FromStr for Source {
    type Err = Error;

    /// From its `Display` form: `default`, `builder`, or the name of a variable of the [table](super::VARIABLES).
    ///
    /// # Errors
    /// `Configuration`.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "default" => Ok(Self::Default),
            "builder" => Ok(Self::Builder),
            _ => Variable::find(text)
                .map(|variable| {
                    Self::Env(match variable.name == text {
                        true => variable.name,
                        false => variable.ucx.unwrap_or(variable.name),
                    })
                })
                .ok_or_else(|| invalid(format!("{text:?} is no source of a value"))),
        }
    }
}

#[cfg(feature = "serde")]
crate::types::serial::as_text! { Source }

/// A value and where it came from. Dereferences to the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting<T> {
    pub(crate) value: T,
    pub(crate) source: Source,
}

impl<T> Deref for Setting<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> From<T> for Setting<T> {
    /// A default.
    fn from(value: T) -> Self {
        Self {
            value,
            source: Source::Default,
        }
    }
}

/// An error about the configuration.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, message.into()).during(Operation::Configure)
}
