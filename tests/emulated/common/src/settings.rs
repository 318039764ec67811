//! Numbers that change how an emulator behaves: from the environment at the start, and by `set NAME VALUE` later.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::control::{Answer, number};

/// One number.
#[derive(Debug)]
pub struct Setting {
    name: &'static str,
    value: AtomicU64,
}

impl Setting {
    /// With its value at the start.
    pub const fn new(name: &'static str, value: u64) -> Self {
        Self {
            name,
            value: AtomicU64::new(value),
        }
    }

    /// Its value now.
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// Whether it is not zero.
    pub fn on(&self) -> bool {
        self.get() != 0
    }
}

/// All of an emulator, made by [`settings!`](crate::settings!).
#[derive(Debug)]
pub struct Settings {
    /// The name of a variable is this and the setting's in capitals.
    pub prefix: &'static str,
    /// The emulator, for people.
    pub who: &'static str,
    /// The numbers.
    pub all: &'static [&'static Setting],
    /// Whether the environment was read.
    pub loaded: Once,
}

impl Settings {
    /// Reads the environment, once.
    pub fn load(&self) {
        self.loaded.call_once(|| {
            for setting in self.all {
                let name = format!("{}{}", self.prefix, setting.name.to_uppercase());
                let Ok(text) = std::env::var(&name) else {
                    continue;
                };
                match text.parse() {
                    Ok(value) => setting.value.store(value, Relaxed),
                    Err(_) => eprintln!("{}: {name}={text:?} is no number", self.who),
                }
            }
        });
    }

    /// Carries out `set NAME VALUE`, which answers the old value, and `get NAME`. `None`: it is neither.
    pub fn command(&self, words: &[&str]) -> Option<Answer> {
        let (name, value) = match *words {
            ["set", name, value] => (name, Some(value)),
            ["get", name] => (name, None),
            _ => return None,
        };
        Some((|| {
            let setting = self.all.iter().find(|setting| setting.name == name);
            let setting = setting.ok_or_else(|| format!("{name:?} is no setting"))?;
            let old = match value {
                Some(value) => setting.value.swap(number(value)?, Relaxed),
                None => setting.get(),
            };
            Ok(old.to_string())
        })())
    }
}

/// Declares the settings of an emulator as statics, `SETTINGS` with all of them, and `load`: the prefix of the variables, who it is, then a line each.
#[macro_export]
macro_rules! settings {
    ($prefix:literal, $who:literal; $($(#[$doc:meta])* $name:ident $text:literal $default:expr;)*) => {
        $($(#[$doc])* pub(crate) static $name: $crate::settings::Setting =
            $crate::settings::Setting::new($text, $default);)*

        /// All of them.
        pub(crate) static SETTINGS: $crate::settings::Settings = $crate::settings::Settings {
            prefix: $prefix,
            who: $who,
            all: &[$(&$name),*],
            loaded: ::std::sync::Once::new(),
        };

        /// Reads the environment, once.
        pub(crate) fn load() {
            SETTINGS.load();
        }
    };
}
