//! Opcode number to definition, per encoding. Built once from the tables in `exec/`.

use std::sync::OnceLock;

use super::{def::Def, inst::Encoding};
use crate::exec;

/// Every table with its encoding.
pub fn all() -> Vec<(Encoding, &'static [Def])> {
    use Encoding::*;
    vec![
        (Sop2, exec::salu::SOP2),
        (Sop1, exec::salu1::SOP1),
        (Sopk, exec::salu1::SOPK),
        (Sopc, exec::salu1::SOPC),
        (Sopp, exec::control::SOPP),
        (Smem, exec::smem::SMEM),
        (Vop1, exec::valu1::VOP1),
        (Vop1, exec::cross_lane::VOP1),
        (Vop1, exec::wide::VOP1),
        (Vop2, exec::valu2::VOP2),
        (Vop2, exec::carry::VOP2),
        (Vop2, exec::wide::VOP2),
        (Vopc, exec::compare::VOPC),
        (Vop3, exec::valu3::VOP3),
        (Vop3, exec::wide::VOP3),
        (Vop3, exec::cross_lane::VOP3),
        (Vop3, exec::carry::VOP3),
        (Vop3, exec::convert::VOP3),
        (Vop1, exec::convert::VOP1),
        (Vop3p, exec::packed::VOP3P),
        (Mai, exec::mfma::MAI),
        (Ds, exec::lds::DS),
        (Ds, exec::lds_special::DS),
        (Mubuf, exec::buffer::MUBUF),
        (Global, exec::global::GLOBAL),
    ]
}

struct Tables(Vec<Vec<Option<&'static Def>>>);

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = vec![vec![None; 1024]; 15];
        for (encoding, defs) in all() {
            for def in defs {
                let slot = &mut tables[encoding as usize][def.op as usize];
                assert!(slot.is_none(), "two definitions of {encoding:?} {}: {}", def.op, def.name);
                *slot = Some(def);
            }
        }
        Tables(tables)
    })
}

/// The definition of an opcode.
pub fn find(encoding: Encoding, op: u32) -> Option<&'static Def> {
    tables().0[encoding as usize].get(op as usize).copied().flatten()
}
