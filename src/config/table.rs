//! One table for the options of a kind, from which all else that lists them is made: the values, their defaults, what the builder may give, how
//! they are read, and how they are told.
//!
//! ```text
//! /// What it is.
//! name: Type = |names| default, "VARIABLE" or "UCX'S" by |word| parse(word.text), told by |value| text;
//! ```
//! Each may be given by the builder as well. Without `told by` a value is told as its type is, by [`Text`](super::value::Text). What
//! the variables are for, [`VARIABLES`](super::VARIABLES) says.

use super::setting::Source;

/// An option in force: its variable, its value as that takes it, and where that came from.
pub(super) type Told = (&'static str, String, Source);

macro_rules! options {
    (@tell) => { Text::text };
    (@tell $tell:expr) => { $tell };
    (
        $(#[$about:meta])*
        struct $Options:ident;
        $(#[$given_about:meta])*
        given $Given:ident {
            $(
                $(#[$doc:meta])*
                $option:ident: $type:ty = $default:expr,
                $name:literal $(or $ucx:literal)? by $parse:expr
                $(, told by $tell:expr)?;
            )+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub(crate) struct $Options {
            $($(#[$doc])* pub(crate) $option: Setting<$type>,)+
        }

        $(#[$given_about])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $Given {
            $(pub(crate) $option: Option<$type>,)+
        }

        impl Default for $Options {
            fn default() -> Self {
                fn default<T>(default: fn(&Names<'_>) -> T) -> Setting<T> {
                    default(&Names::NONE).into()
                }
                Self {
                    $($option: default($default),)+
                }
            }
        }

        impl $Options {
            /// Puts together what the builder was given, the environment and the defaults.
            /// Errors: `Configuration`: a variable's value is unknown or impossible.
            pub(super) fn load(
                given: $Given,
                environment: &Environment<'_>,
                names: Names<'_>,
            ) -> Result<Self> {
                Ok(Self {
                    $($option: environment.choose(
                        given.$option,
                        &[$name $(, $ucx)?],
                        $parse,
                        $default,
                        names,
                    )?,)+
                })
            }

            /// Every option as text, by its variable.
            pub(super) fn describe(&self) -> Vec<Told> {
                fn told<T>(
                    name: &'static str,
                    setting: &Setting<T>,
                    tell: fn(&T) -> String,
                ) -> Told {
                    (name, tell(&setting.value), setting.source)
                }
                vec![
                    $(told($name, &self.$option, options!(@tell $($tell)?)),)+
                ]
            }
        }
    };
}
pub(super) use options;
