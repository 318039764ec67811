//! Features of this build.

/// Those that bring transports or channels, and whether each is built in.
pub(crate) const FEATURES: [(&str, bool); 5] = [
    ("channel", cfg!(feature = "channel")),
    ("cuda", cfg!(feature = "cuda")),
    ("gaudi", cfg!(feature = "gaudi")),
    ("rocm", cfg!(feature = "rocm")),
    ("verbs", cfg!(feature = "verbs")),
];

/// Whether this one of them is built in.
pub(crate) fn is_built_in(feature: &str) -> bool {
    FEATURES.contains(&(feature, true))
}
