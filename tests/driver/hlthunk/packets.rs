//! The packet, bit by bit, against the words that the vendor's own software writes.

use crate::{
    driver::hlthunk::{Chip, LinDma},
    error::ErrorKind,
};

fn words(packet: &LinDma, chip: Chip) -> [u32; 6] {
    let bytes = packet.encode(chip).expect("a packet");
    let mut words = [0; 6];
    for (word, four) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes(four.try_into().expect("four"));
    }
    words
}

/// What one packet copies at most.
const LARGEST: u64 = (4 << 30) - 4096;

#[test]
fn words_are_those_of_the_chips() {
    let both = LinDma::copy(0xFFF0_0000_1234_5678, 0x1001_0018_0000_1000, 0x89AB_CDEF);
    let message = LinDma {
        engine_barrier: false,
        ..both
    };
    let plain = LinDma {
        message_barrier: false,
        ..message
    };
    let rest = [0x1234_5678, 0xFFF0_0000, 0x0000_1000, 0x1001_0018];
    for (packet, ctl) in [
        (both, 0xA900_0000),
        (message, 0x8900_0000),
        (plain, 0x0900_0000),
    ] {
        let [len, found, address @ ..] = words(&packet, Chip::Gaudi2);
        assert_eq!((len, found, address), (0x89AB_CDEF, ctl, rest));
    }
    let near = |packet: LinDma| LinDma {
        source: 0x0001_0000_0000_2000,
        target: 0x2000_0000,
        ..packet
    };
    let rest = [0x0000_2000, 0x0001_0000, 0x2000_0000, 0];
    for (packet, ctl) in [
        (both, 0xE900_0008),
        (message, 0xC900_0008),
        (plain, 0x4900_0008),
    ] {
        let [len, found, address @ ..] = words(&near(packet), Chip::Gaudi);
        assert_eq!((len, found, address), (0x89AB_CDEF, ctl, rest));
    }
    let fill = LinDma {
        source: 0xA5A5_5A5A,
        fill: true,
        ..near(both)
    };
    assert_eq!(words(&fill, Chip::Gaudi)[1], 0xE900_0018);
    assert_eq!(
        words(&fill, Chip::Gaudi2)[1..4],
        [0xA900_0010, 0xA5A5_5A5A, 0]
    );
}

#[test]
fn what_no_packet_can_be_is_refused() {
    let copy = LinDma::copy;
    let wrong = [
        (copy(1, 2, 0), Chip::Gaudi2),
        (copy(u64::MAX, 2, 2), Chip::Gaudi2),
        (copy(1, u64::MAX, 2), Chip::Gaudi2),
        // The first Gaudi's addresses end at 56 bits.
        (copy(1, 1 << 56, 1), Chip::Gaudi),
        (copy((1 << 56) - 1, 1, 2), Chip::Gaudi),
        (
            LinDma {
                fill: true,
                ..copy(1 << 32, 1, 4)
            },
            Chip::Gaudi2,
        ),
    ];
    for (packet, chip) in wrong {
        let error = packet.encode(chip).expect_err("no packet");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{packet:?}");
    }
    copy(1, (1 << 56) - 1, 1)
        .encode(Chip::Gaudi)
        .expect("the last byte");
    copy(1, 1 << 56, 1).encode(Chip::Gaudi2).expect("64 bits");
    for chip in [Chip::Gaudi3, Chip::Other(9)] {
        let error = copy(1, 2, 3).encode(chip).expect_err("no submissions");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn a_long_copy_is_several_packets() {
    assert_eq!(LinDma::split(1, 2, 0).count(), 0);
    let one: Vec<_> = LinDma::split(1, 2, LARGEST).collect();
    assert_eq!(one, [LinDma::copy(1, 2, LARGEST as u32)]);
    let three: Vec<_> = LinDma::split(4096, 8192, 2 * LARGEST + 5).collect();
    let copies = [
        LinDma::copy(4096, 8192, LARGEST as u32),
        LinDma::copy(4096 + LARGEST, 8192 + LARGEST, LARGEST as u32),
        LinDma::copy(4096 + 2 * LARGEST, 8192 + 2 * LARGEST, 5),
    ];
    assert_eq!(three, copies);
    assert!(u32::try_from(LARGEST).is_ok());
}
