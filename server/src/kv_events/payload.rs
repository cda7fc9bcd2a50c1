//! Block events as msgpack: `[seconds, [event, …], rank]`, each event an array that begins with its name.
//!
//! * `["BlockStored", [hash, …], parent or nil, [token id, …], block size, nil, medium, nil]`, then, where a salt matters,
//!   one entry per block: `[[salt]]` or nil. The two nils are adapter id and name, which this engine does not have.
//! * `["BlockRemoved", [hash, …], medium]`
//! * `["AllBlocksCleared"]`
//!
//! Blocks that follow one upon the other in one text go into one event. Medium is `GPU` for the device's memory, whatever
//! the device is, and `CPU` for the host tier: readers compare these words.

use rmp::encode::{ValueWriteError, write_array_len, write_f64, write_nil, write_sint, write_str, write_uint};
use tokenspeed_core::cache::events::{BlockEvent, Tier};

fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
    }
}

/// How many events from the first on go into one.
fn run_length(events: &[BlockEvent]) -> usize {
    let pairs = events.windows(2);
    1 + pairs
        .take_while(|pair| match (&pair[0], &pair[1]) {
            (BlockEvent::Stored { hash, tier, .. }, BlockEvent::Stored { parent, tier: next, .. }) => {
                *parent == Some(*hash) && tier == next
            }
            (BlockEvent::Removed { tier, .. }, BlockEvent::Removed { tier: next, .. }) => tier == next,
            _ => false,
        })
        .count()
}

/// One message: what happened by `seconds` since 1970.
pub fn payload(seconds: f64, events: &[BlockEvent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + events.len() * 64);
    write(&mut bytes, seconds, events).expect("a vector takes everything");
    bytes
}

type Written = Result<(), ValueWriteError<std::io::Error>>;

fn write(out: &mut Vec<u8>, seconds: f64, events: &[BlockEvent]) -> Written {
    let mut runs = Vec::new();
    let mut rest = events;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(run_length(rest));
        runs.push(run);
        rest = after;
    }
    write_array_len(out, 3)?;
    write_f64(out, seconds)?;
    write_array_len(out, runs.len() as u32)?;
    for run in runs {
        write_run(out, run)?;
    }
    write_sint(out, 0)?;
    Ok(())
}

fn write_run(out: &mut Vec<u8>, run: &[BlockEvent]) -> Written {
    let hashes = |out: &mut Vec<u8>| -> Written {
        write_array_len(out, run.len() as u32)?;
        for event in run {
            if let BlockEvent::Stored { hash, .. } | BlockEvent::Removed { hash, .. } = event {
                write_uint(out, *hash)?;
            }
        }
        Ok(())
    };
    match &run[0] {
        BlockEvent::Stored { parent, tokens, tier, salt, .. } => {
            write_array_len(out, if salt.is_some() { 9 } else { 8 })?;
            write_str(out, "BlockStored")?;
            hashes(out)?;
            match parent {
                Some(parent) => drop(write_uint(out, *parent)?),
                None => write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?,
            }
            write_array_len(out, (run.len() * tokens.len()) as u32)?;
            for event in run {
                if let BlockEvent::Stored { tokens, .. } = event {
                    for &id in tokens {
                        write_uint(out, id.into())?;
                    }
                }
            }
            write_uint(out, tokens.len() as u64)?;
            write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?;
            write_str(out, medium(*tier))?;
            write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?;
            if let Some(salt) = salt {
                // Only the first block of a text has one.
                write_array_len(out, run.len() as u32)?;
                write_array_len(out, 1)?;
                write_str(out, salt)?;
                for _ in 1..run.len() {
                    write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?;
                }
            }
        }
        BlockEvent::Removed { tier, .. } => {
            write_array_len(out, 3)?;
            write_str(out, "BlockRemoved")?;
            hashes(out)?;
            write_str(out, medium(*tier))?;
        }
        BlockEvent::Cleared => {
            write_array_len(out, 1)?;
            write_str(out, "AllBlocksCleared")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Batch(f64, Vec<Event>, u32);

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(untagged)]
    enum Event {
        Salted(Name, Vec<u64>, Option<u64>, Vec<u32>, u32, (), String, (), Vec<Option<Vec<String>>>),
        Stored(Name, Vec<u64>, Option<u64>, Vec<u32>, u32, (), String, ()),
        Removed(Name, Vec<u64>, String),
        Cleared((Name,)),
    }

    #[derive(Debug, Deserialize, PartialEq)]
    enum Name {
        BlockStored,
        BlockRemoved,
        AllBlocksCleared,
    }

    #[test]
    fn another_decoder_reads_what_was_meant() {
        let stored = |hash: u64, parent, tier, salt: Option<&str>| {
            let tokens = vec![hash as u32, 70_000];
            BlockEvent::Stored { hash, parent, tokens, tier, salt: salt.map(Into::into) }
        };
        let removed = |hash, tier| BlockEvent::Removed { hash, tier };
        let events = [
            stored(u64::MAX, None, Tier::Device, Some("s")),
            stored(2, Some(u64::MAX), Tier::Device, None),
            stored(3, Some(u64::MAX), Tier::Device, None),
            stored(4, Some(3), Tier::Host, None),
            removed(3, Tier::Device),
            removed(2, Tier::Device),
            removed(4, Tier::Host),
            BlockEvent::Cleared,
        ];
        let Batch(seconds, got, rank) = rmp_serde::from_slice(&payload(1.5, &events)).expect("msgpack");
        assert_eq!((seconds, rank), (1.5, 0));
        let last = u64::MAX as u32;
        let wanted = [
            Event::Salted(
                Name::BlockStored,
                vec![u64::MAX, 2],
                None,
                vec![last, 70_000, 2, 70_000],
                2,
                (),
                "GPU".into(),
                (),
                vec![Some(vec!["s".into()]), None],
            ),
            Event::Stored(Name::BlockStored, vec![3], Some(u64::MAX), vec![3, 70_000], 2, (), "GPU".into(), ()),
            Event::Stored(Name::BlockStored, vec![4], Some(3), vec![4, 70_000], 2, (), "CPU".into(), ()),
            Event::Removed(Name::BlockRemoved, vec![3, 2], "GPU".into()),
            Event::Removed(Name::BlockRemoved, vec![4], "CPU".into()),
            Event::Cleared((Name::AllBlocksCleared,)),
        ];
        assert_eq!(got, wanted);
    }
}
