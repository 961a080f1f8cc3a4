//! Row types: the writer of each table.

use super::sink::Create;
use super::table_writer::{AnyTable, TableWriter};
use super::tables::{Columns, NAMES, each_table};
use std::path::Path;

/// A row of a table.
pub trait Row: Columns {
    #[doc(hidden)]
    fn writer(tables: &mut Tables) -> &mut TableWriter<Self>;
}

macro_rules! writers {
    ($($row:ident in $table:ident, $name:literal;)+) => {
        /// Writers of all tables.
        pub struct Tables {
            $( $table: TableWriter<memgauge_trace::$row>, )+
        }

        impl Tables {
            pub(super) fn new(recording: &Path, create: &Create) -> Self {
                Tables {
                    $( $table: TableWriter::new(recording, create), )+
                }
            }

            pub(super) fn each(&mut self) -> [&mut dyn AnyTable; NAMES.len()] {
                [$( &mut self.$table ),+]
            }

            pub(super) fn each_ref(&self) -> [&dyn AnyTable; NAMES.len()] {
                [$( &self.$table ),+]
            }
        }

        $(
            impl Row for memgauge_trace::$row {
                #[inline]
                fn writer(tables: &mut Tables) -> &mut TableWriter<Self> {
                    &mut tables.$table
                }
            }
        )+
    };
}

each_table!(writers);
