//! Numbers that change how the emulator behaves: from `EMULATED_SYNAPSE_NAME` at the start, and by `set NAME VALUE` later.

wharf_emulated_common::settings! {
    "EMULATED_SYNAPSE_", "emulated Synapse";
    /// How many cards there are, up to 8, with the modules 7, 6 and so on.
    DEVICES "devices" 2;
    /// 1, 2 or 3: Gaudi1, 2, 3.
    GENERATION "generation" 2;
    /// Bytes of memory of each card.
    MEMORY "memory" 1 << 30;
    /// Whether `synDeviceGetInfoV2` tells where the memory pool begins, as newer runtimes do.
    POOL_KNOWN "pool_known" 1;
    /// Longest random delay before a copy, in microseconds.
    DELAY_US "delay_us" 50;
    /// Seed of the random delays.
    SEED "seed" 1;
    /// Whether host memory that overlaps a mapped range can be mapped.
    OVERLAP "overlap" 0;
    /// A status that every call gives: the library is there and does not work.
    FAILING "failing" 0;
    /// Whether `synDeviceGetInfo` writes the struct of the small SynapseAI_Core.
    SMALL "small" 0;
    /// Whether a call that waits longer than so many milliseconds ends the process with a message.
    HANG_MS "hang_ms" 60_000;
}
