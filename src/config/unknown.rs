//! Variables that look like wharf's and are none: misspellings.

use super::{
    environment::Environment,
    nearest::nearest,
    told::warn_once,
    variables::{VARIABLES, Variable},
};

/// A `WHARF_` variable that is set and that nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The variable that was most likely meant.
    pub nearest: Option<&'static Variable>,
}

impl UnknownVariable {
    /// Of these names those that begin as wharf's do and are none.
    pub(super) fn among(environment: &Environment<'_>) -> Vec<Self> {
        let known = || VARIABLES.iter().map(|variable| variable.name);
        let stranger =
            |name: &&str| name.starts_with("WHARF_") && !known().any(|known| known == *name);
        let is_anothers =
            |name: &str| is_of_kubernetes(name, &environment.get(name).unwrap_or_default());
        environment
            .names()
            .filter(stranger)
            .filter(|name| !is_anothers(name))
            .map(|name| Self {
                name: name.to_owned(),
                nearest: nearest(name, known()).and_then(Variable::find),
            })
            .collect()
    }
}

/// Whether Kubernetes has set it, as it does for every service in a pod's namespace: here for one called `wharf`, or `wharf-` and something.
pub(super) fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let is_of_port = |rest: &str| {
        let mut words = rest.split('_');
        let number = words.next().is_some_and(|port| port.parse::<u16>().is_ok());
        number && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
        || name
            .match_indices("_PORT_")
            .any(|(at, port)| is_of_port(&name[at + port.len()..]))
}

/// Tells of variables that nobody reads: each is a misspelling, and would silently do nothing. Of each once in a process.
pub(super) fn warn_unknown(unknown: &[UnknownVariable]) {
    for UnknownVariable { name, nearest } in unknown {
        let guess = nearest.map_or_else(String::new, |nearest| {
            format!("; did you mean {}?", nearest.name)
        });
        warn_once(&format!(
            "{name} is not a variable of wharf, and does nothing{guess}"
        ));
    }
}

/// Tells of wharf's own variables that do nothing in this build. Of each once in a process.
pub(super) fn warn_idle(environment: &Environment<'_>) {
    for variable in VARIABLES {
        let name = variable.name;
        if let Some(feature) = variable.missing_feature()
            && name.starts_with("WHARF_")
            && let Some(value) = environment.get(name)
            && !is_of_kubernetes(name, &value)
        {
            warn_once(&format!(
                "{name} does nothing: this build of wharf is without its feature `{feature}`"
            ));
        }
    }
}
