//! Numbers that change how the emulator behaves: from `EMULATED_HLTHUNK_NAME` at the start, and by `set NAME VALUE` later.

wharf_emulated_common::settings! {
    "EMULATED_HLTHUNK_", "emulated libhl-thunk";
    /// How many cards there are.
    CARDS "cards" 2;
    /// Their generation: 1, 2 or 3; from 4 on a second one that says it is of this type.
    CHIP "chip" 2;
    /// Bytes of memory of each card.
    MEMORY "memory" 6 << 30;
    /// What allocations are rounded up to. Not a power of two, as on a Gaudi 2 with six stacks of memory.
    PAGE "page" 768 << 20;
    /// Bytes that the answer of `hlthunk_get_hw_ip_info` has: a newer library writes more.
    HW_IP_BYTES "hw_ip_bytes" 336;
    /// Whether the kernel maps dma-bufs of other cards, for programs that have this library preloaded: 0 not, 1 yes, 2 no way on PCI.
    PEERS "peers" 1;
    /// Which engines copy within a card, a bit each.
    EDMA "edma" 0xFE;
    /// Longest random delay before a submission is carried out, in microseconds.
    DELAY_US "delay_us" 50;
    /// Seed of the random delays and orders.
    SEED "seed" 1;
    /// How long a card is in reset after it was given back, in milliseconds.
    RELEASE_MS "release_ms" 0;
    /// After so many milliseconds a submission has timed out, and the card is reset.
    TIMEOUT_MS "timeout_ms" 30_000;
}
