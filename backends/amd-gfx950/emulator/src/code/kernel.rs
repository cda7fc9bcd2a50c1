//! A loaded code object: decoded kernels, ready to run.
//!
//! Every kernel of an object is decoded when the object is loaded, so that an unknown opcode is an error of loading, with
//! the kernel's name, and never a surprise in the middle of a launch.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    descriptor::Descriptor,
    elf::{Elf, LoadError},
    msgpack::{self, Value},
};
use crate::{
    isa::{self, Encoding, File, Inst},
    machine::{Allocation, Memory, Owner},
};

/// One argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Byte offset in the argument segment.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// As the metadata calls it: `global_buffer`, `by_value`, `hidden_…`.
    pub kind: String,
}

/// One kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// Descriptor.
    pub descriptor: Descriptor,
    /// Arguments in order, hidden ones last.
    pub arguments: Vec<Argument>,
    /// Bytes of the argument segment.
    pub kernarg_bytes: usize,
    /// Largest work-group.
    pub max_group: u32,
    /// Registers that the compiler spilt, vector and scalar.
    pub spills: [u32; 2],
    /// Decoded code.
    pub code: Vec<Inst>,
    /// Instruction index of the entry for hardware that preloads arguments, if there is one.
    pub preload_entry: Option<usize>,
    /// Address of the code in device memory.
    pub code_address: u64,
    /// FNV-1a hash of the code object it came from; 0 for bare code.
    pub object: u64,
    words: Vec<u32>,
}

/// A code object in memory.
#[derive(Debug)]
pub struct Object {
    /// Kernels by name.
    pub kernels: BTreeMap<String, Arc<Kernel>>,
    /// Target as the metadata names it.
    pub target: String,
    image: Arc<Allocation>,
}

/// First value and factor of a 64-bit FNV-1a hash.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x100_0000_01b3);

/// Code before the real entry on hardware without preloading: loads the same registers itself.
const PRELOAD_PROLOGUE_BYTES: u32 = 256;

impl Object {
    /// Loads an object: image into `memory`, all kernels decoded.
    ///
    /// # Errors
    /// Whatever is wrong with the file, or not modelled.
    pub fn load(bytes: &[u8], memory: &Memory) -> Result<Self, LoadError> {
        let elf = Elf::parse(bytes)?;
        let metadata = msgpack::parse(elf.metadata)?;
        let len = elf.segments.iter().map(|s| s.address + s.memory_len).max().unwrap_or(0);
        let image = memory
            .allocate(len as usize, Owner::System, false)
            .ok_or_else(|| LoadError::Corrupt("the image does not fit into memory".into()))?;
        for s in &elf.segments {
            let from = &bytes[s.file.clone()];
            // SAFETY: the image was just allocated, is not shared yet, and is as long as the last segment's end.
            unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), (image.base + s.address as usize) as *mut u8, from.len());
            }
        }
        let object = bytes.iter().fold(FNV.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV.1));
        let mut kernels = BTreeMap::new();
        for description in metadata.list("amdhsa.kernels") {
            let kernel = Kernel { object, ..kernel(&elf, description, image.base as u64)? };
            kernels.insert(kernel.name.clone(), Arc::new(kernel));
        }
        let target = metadata.text("amdhsa.target").unwrap_or_default().to_string();
        Ok(Self { kernels, target, image })
    }

    /// Removes the image from memory.
    pub fn unload(&self, memory: &Memory) {
        memory.free(self.image.base);
    }
}

fn kernel(elf: &Elf, description: &Value, image: u64) -> Result<Kernel, LoadError> {
    let missing = |what: &str| LoadError::Corrupt(format!("metadata without {what}"));
    let name = description.text(".name").ok_or_else(|| missing(".name"))?.to_string();
    let symbol = elf.symbol(description.text(".symbol").ok_or_else(|| missing(".symbol"))?)?;
    let descriptor = Descriptor::parse(elf.image(symbol.address, 64)?)?;
    let unsupported = |what: String| LoadError::Unsupported { kernel: name.clone(), what };
    if descriptor.scratch_bytes != 0 {
        return Err(unsupported(format!("needs {} bytes of scratch per lane", descriptor.scratch_bytes)));
    }
    let code_symbol = elf.symbol(&name)?;
    if code_symbol.address != symbol.address.wrapping_add_signed(descriptor.entry) {
        return Err(unsupported("its entry is not where its symbol is".into()));
    }
    let words: Vec<u32> = elf
        .image(code_symbol.address, code_symbol.size)?
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let (code, preload_entry) = decode_all(&name, &words, &descriptor)?;
    let argument = |a: &Value| {
        Some(Argument {
            offset: a.int(".offset")? as usize,
            size: a.int(".size")? as usize,
            kind: a.text(".value_kind")?.to_string(),
        })
    };
    let arguments: Option<Vec<_>> = description.list(".args").iter().map(argument).collect();
    let arguments = arguments.ok_or_else(|| missing("argument fields"))?;
    check_scalars(&name, &descriptor)?;
    let kernarg_bytes = description.int(".kernarg_segment_size").unwrap_or(0).clamp(0, 4096) as usize;
    if let Some(a) = arguments.iter().find(|a| a.offset.saturating_add(a.size) > kernarg_bytes) {
        return Err(unsupported(format!("argument {} lies outside the argument segment", a.kind)));
    }
    if 4 * (descriptor.preload_offset + descriptor.preload_dwords) as usize > kernarg_bytes.next_multiple_of(64) {
        return Err(unsupported("it preloads more arguments than it has".into()));
    }
    let count = |key| description.int(key).unwrap_or(0) as u32;
    Ok(Kernel {
        descriptor,
        arguments,
        kernarg_bytes,
        max_group: count(".max_flat_workgroup_size"),
        spills: [count(".vgpr_spill_count"), count(".sgpr_spill_count")],
        code,
        preload_entry,
        code_address: image + code_symbol.address,
        object: 0,
        words,
        name,
    })
}

/// What the hardware sets up must fit into the sixteen user registers.
fn check_scalars(name: &str, d: &Descriptor) -> Result<(), LoadError> {
    let sizes = [(0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1)];
    let fixed: u32 = sizes.iter().filter(|(bit, _)| d.properties >> bit & 1 != 0).map(|(_, dwords)| dwords).sum();
    if fixed + d.preload_dwords > 16 || d.user_registers > 16 {
        return Err(LoadError::Unsupported { kernel: name.into(), what: "more than 16 user registers".into() });
    }
    Ok(())
}

/// Decodes code, maps accumulation registers behind the vector registers, checks register numbers, resolves branches.
fn decode_all(name: &str, words: &[u32], d: &Descriptor) -> Result<(Vec<Inst>, Option<usize>), LoadError> {
    let mut code: Vec<Inst> = Vec::new();
    let mut at = 0;
    let mut index_of = BTreeMap::new();
    while at < words.len() {
        let offset = 4 * at as u32;
        let wrap = |error| LoadError::Code { kernel: name.into(), offset, error };
        // Padding behind the end is not code.
        if words[at] == 0 && code.last().is_some_and(|i| i.def.name == "s_endpgm" || i.def.name == "s_branch") {
            let rest = &words[at..];
            let zeros = rest.iter().take_while(|w| **w == 0).count();
            at += zeros;
            continue;
        }
        let mut inst = isa::decode(&words[at..]).map_err(wrap)?;
        inst.address = offset;
        let refuse =
            |what: String| Err(LoadError::Unsupported { kernel: name.into(), what: format!("at {offset:#x}: {what}") });
        for o in [&mut inst.d, &mut inst.m].into_iter().chain(inst.s.iter_mut()) {
            if o.file != File::Vector {
                continue;
            }
            if o.acc {
                o.index += d.first_acc as u16;
            }
            let end = o.at() + o.width as usize;
            if end > d.vector_registers || !o.acc && end > 256 {
                return refuse(format!("register {} of {}", end - 1, d.vector_registers));
            }
        }
        index_of.insert(offset, code.len());
        at += inst.words as usize;
        code.push(inst);
    }
    for inst in &mut code {
        let name_of = inst.def.name;
        if inst.encoding == Encoding::Sopp && (name_of == "s_branch" || name_of.starts_with("s_cbranch")) {
            let to = i64::from(inst.address) + 4 + 4 * i64::from(inst.f.imm as i16);
            let target = u32::try_from(to).ok().and_then(|to| index_of.get(&to));
            let Some(target) = target else {
                let what = format!("at {:#x}: branch to {to:#x}, which is no instruction", inst.address);
                return Err(LoadError::Unsupported { kernel: name.into(), what });
            };
            inst.target = *target as u32;
        }
    }
    let preload = (d.preload_dwords > 0).then(|| index_of.get(&PRELOAD_PROLOGUE_BYTES).copied()).flatten();
    Ok((code, preload))
}

impl Kernel {
    /// A kernel of bare code: no arguments, `vector_registers` registers, group coordinates in s0, s1, s2.
    ///
    /// # Errors
    /// Code that cannot be decoded.
    pub fn bare(name: &str, words: &[u32], vector_registers: usize) -> Result<Self, LoadError> {
        Self::with_accumulators(name, words, vector_registers, 0)
    }

    /// The same with accumulation registers behind the vector registers.
    ///
    /// # Errors
    /// Code that cannot be decoded.
    pub fn with_accumulators(name: &str, words: &[u32], vector: usize, more: usize) -> Result<Self, LoadError> {
        let descriptor = Descriptor {
            vector_registers: vector + more,
            first_acc: vector,
            // Denormals kept.
            mode: 0xf0,
            group_id: [true; 3],
            ..Descriptor::default()
        };
        let (code, preload_entry) = decode_all(name, words, &descriptor)?;
        Ok(Self {
            name: name.into(),
            descriptor,
            arguments: Vec::new(),
            kernarg_bytes: 0,
            max_group: 1024,
            spills: [0; 2],
            code,
            preload_entry,
            code_address: 0,
            object: 0,
            words: words.to_vec(),
        })
    }

    /// Text of the instruction at a byte offset.
    pub fn disassemble(&self, offset: u32) -> String {
        let words = self.words.get(offset as usize / 4..).unwrap_or_default();
        isa::decode(words).map_or_else(|e| e.to_string(), |i| isa::print(&i))
    }

    /// All instructions as byte offset, dwords and text.
    pub fn listing(&self) -> Vec<(u32, &[u32], String)> {
        let entry = |i: &Inst| {
            let at = i.address as usize / 4;
            (i.address, &self.words[at..at + i.words as usize], self.disassemble(i.address))
        };
        self.code.iter().map(entry).collect()
    }
}
