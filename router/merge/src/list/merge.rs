//! The merge itself: whose turn it is, what passes, and what stands around the items.
//!
//! JSON legs are read one after the other and the metadata is written last, because custom resources tell theirs last.
//! Protobuf tells the length of all first, so every leg's head is read before anything is written. A Table needs the
//! columns of all before its first row. Bytes of a leg whose turn has not come are kept: the driver bounds them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::json::Array;
use super::reader::Reader;
use super::selection::Selection;
use super::writer::Writer;
use super::{LegMeta, ListError, ListFault, ListFormat, ListLeg, ListOptions, MergedMeta, Piece, TypeMeta, Wants};
use crate::columns::{Alignment, Row};
use crate::object_meta::{self, ObjectMeta};

/// Many bodies, one list. After an error there is none: the driver must end the answer so that the client sees it broken.
#[derive(Debug)]
pub struct ListMerge {
    legs: Vec<Leg>,
    metas: Vec<Option<LegMeta>>,
    type_meta: Option<TypeMeta>,
    selection: Selection,
    phase: Phase,
    writer: Writer,
    failed: Option<ListError>,
}

#[derive(Debug)]
struct Leg {
    of: ListLeg,
    reader: Reader,
    pending: VecDeque<Bytes>,
    headed: bool,
    ended: bool,
    /// Something of this leg's items was passed on.
    some: bool,
    /// Objects that the filter does not admit.
    left_out: u64,
    alignment: Option<Alignment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Every leg's head is read.
    Heads,
    /// The items of this leg are passed on.
    Items(usize),
    Meta,
    Done,
}

impl ListMerge {
    /// A merge of these legs, in this order.
    pub fn new(format: ListFormat, legs: Vec<ListLeg>, options: ListOptions) -> Self {
        let unique = options.unique && legs.len() > 1;
        let leg = |of: ListLeg| {
            let by_item = unique || of.filter.is_some() || format == ListFormat::Table;
            Leg::new(Reader::new(format, by_item, options.max_item_bytes), of)
        };
        Self {
            metas: vec![None; legs.len()],
            legs: legs.into_iter().map(leg).collect(),
            type_meta: None,
            selection: Selection::new(unique),
            phase: match format {
                ListFormat::Json => Phase::Items(0),
                ListFormat::Protobuf | ListFormat::Table => Phase::Heads,
            },
            writer: Writer::new(format, options.cluster_column, options.hide_objects),
            failed: None,
        }
    }

    /// What is to be done next.
    pub fn wants(&self) -> Wants {
        match self.phase {
            Phase::Heads => Wants::Leg(self.legs.iter().position(|leg| !leg.headed).unwrap_or_default()),
            Phase::Items(leg) => Wants::Leg(leg),
            Phase::Meta => Wants::Meta,
            Phase::Done => Wants::Done,
        }
    }

    /// Takes a piece of a leg's body, cut anywhere.
    pub fn push(&mut self, leg: usize, chunk: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        self.legs[leg].pending.push_back(chunk);
        self.advance(out)
    }

    /// A leg's body has ended as HTTP says it should.
    pub fn end(&mut self, leg: usize, out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        self.legs[leg].ended = true;
        self.advance(out)
    }

    /// What is known of the legs' metadata.
    pub fn metas(&self) -> &[Option<LegMeta>] {
        &self.metas
    }

    /// Answers [`Wants::Meta`].
    pub fn set_meta(&mut self, meta: MergedMeta, out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        if self.phase != Phase::Meta || self.failed.is_some() {
            return Err(self
                .failed
                .clone()
                .unwrap_or_else(|| self.error(0, ListFault::OutOfTurn)));
        }
        let kind = self.type_meta.clone().unwrap_or_default();
        if self.writer.format == ListFormat::Protobuf {
            let mut rests = self.legs.iter().map(|leg| leg.reader.rest());
            let rest = rests.try_fold(0_u64, u64::checked_add);
            if !self.writer.begin_protobuf(&kind, &meta, rest) {
                return Err(self.fail(0, ListFault::Broken("lengths beyond all measure")));
            }
            self.phase = Phase::Items(0);
        } else {
            self.writer.finish(&kind, &meta);
            self.phase = Phase::Done;
        }
        self.advance(out)
    }

    /// Objects left out because an earlier leg has their name.
    pub fn collisions(&self) -> u64 {
        self.selection.collisions()
    }

    /// Objects of a leg that its filter does not admit, so far.
    pub fn left_out(&self, leg: usize) -> u64 {
        self.legs[leg].left_out
    }

    fn advance(&mut self, out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while self.turn()? {}
        self.writer.flush(out);
        Ok(())
    }

    /// Goes on to the next phase if this one is over.
    fn turn(&mut self) -> Result<bool, ListError> {
        match self.phase {
            Phase::Heads => {
                for leg in 0..self.legs.len() {
                    self.read_head(leg).map_err(|fault| self.fail(leg, fault))?;
                }
                if !self.legs.iter().all(|leg| leg.headed) {
                    return Ok(false);
                }
                self.phase = self.headed()?;
            }
            Phase::Items(leg) if leg < self.legs.len() => {
                if !self.read_items(leg).map_err(|fault| self.fail(leg, fault))? {
                    return Ok(false);
                }
                self.phase = Phase::Items(leg + 1);
            }
            Phase::Items(_) if self.writer.format == ListFormat::Protobuf => {
                self.writer.finish_protobuf();
                self.phase = Phase::Done;
            }
            Phase::Items(_) => self.phase = Phase::Meta,
            Phase::Meta | Phase::Done => return Ok(false),
        }
        Ok(true)
    }

    fn read_head(&mut self, index: usize) -> Result<(), ListFault> {
        let leg = &mut self.legs[index];
        while !leg.headed {
            let Some(mut chunk) = leg.pending.pop_front() else {
                return if leg.ended { leg.reader.end() } else { Ok(()) };
            };
            leg.headed = leg.reader.step(&mut chunk)?.is_some();
            if !chunk.is_empty() {
                leg.pending.push_front(chunk);
            }
        }
        self.metas[index] = leg.reader.meta();
        Ok(())
    }

    /// The phase that follows when every head is known.
    fn headed(&mut self) -> Result<Phase, ListError> {
        if self.writer.format == ListFormat::Protobuf {
            for leg in 0..self.legs.len() {
                self.agree(leg).map_err(|fault| self.fail(leg, fault))?;
            }
            return Ok(Phase::Meta);
        }
        let arrays: Vec<_> = self.legs.iter().map(|leg| leg.reader.array()).collect();
        if arrays.iter().all(|array| *array == Some(Array::Items)) {
            // The kind has no Table on any member: the client gets the list, as from one API server.
            self.writer.format = ListFormat::Json;
        } else {
            for leg in 0..self.legs.len() {
                self.align(leg).map_err(|fault| self.fail(leg, fault))?;
            }
        }
        self.writer.begin();
        Ok(Phase::Items(0))
    }

    fn align(&mut self, index: usize) -> Result<(), ListFault> {
        let leg = &mut self.legs[index];
        if leg.reader.array() == Some(Array::Items) {
            return Err(ListFault::Broken("no table, where other clusters have one"));
        }
        let definitions = leg.reader.columns().unwrap_or(Bytes::from_static(b"null"));
        let alignment = self.writer.columns.align(&definitions);
        leg.alignment = Some(alignment.ok_or(ListFault::Broken("column definitions that cannot be read"))?);
        Ok(())
    }

    /// Whether the leg's items have all been passed on.
    fn read_items(&mut self, index: usize) -> Result<bool, ListFault> {
        while let Some(mut chunk) = self.legs[index].pending.pop_front() {
            while let Some(piece) = self.legs[index].reader.step(&mut chunk)? {
                self.pass(index, piece)?;
            }
        }
        let leg = &self.legs[index];
        self.metas[index] = leg.reader.meta();
        if !leg.ended {
            return Ok(false);
        }
        leg.reader.end()?;
        self.metas[index].get_or_insert_default();
        self.agree(index)?;
        Ok(true)
    }

    fn agree(&mut self, index: usize) -> Result<(), ListFault> {
        let found = self.legs[index].reader.type_meta();
        let found = found.ok_or(ListFault::Broken("a list that does not say its type"))?;
        match &self.type_meta {
            Some(expected) if *expected != found => Err(ListFault::TypeDiffers {
                expected: expected.clone(),
                found,
            }),
            _ => {
                self.type_meta = Some(found);
                Ok(())
            }
        }
    }

    fn pass(&mut self, index: usize, piece: Piece) -> Result<(), ListFault> {
        match (piece, self.writer.format) {
            (Piece::Begin, ListFormat::Json) if self.legs[index].reader.array() == Some(Array::Rows) => {
                return Err(ListFault::Broken("a table that was not asked for"));
            }
            (Piece::Begin, _) => self.writer.begin(),
            (Piece::Raw(bytes), _) => {
                if !std::mem::replace(&mut self.legs[index].some, true) {
                    self.writer.separate();
                }
                self.writer.put(bytes);
            }
            (Piece::Item { raw, object }, ListFormat::Protobuf) => {
                if self.admits(index, object_meta::protobuf_object(&raw[object..]))? {
                    self.writer.put(raw);
                } else {
                    self.writer.hollow(&raw, object);
                }
            }
            (Piece::Item { raw, .. }, ListFormat::Table) => self.pass_row(index, raw)?,
            (Piece::Item { raw, .. }, ListFormat::Json) => {
                if self.admits(index, object_meta::json_item(&raw))? {
                    self.writer.separate();
                    self.writer.put(raw);
                }
            }
        }
        Ok(())
    }

    fn pass_row(&mut self, index: usize, raw: Bytes) -> Result<(), ListFault> {
        let row: Row<'_> = serde_json::from_slice(&raw).map_err(|_| ListFault::Broken("a row that cannot be read"))?;
        if self.selection.looks_at_items(self.legs[index].of.filter.as_ref()) {
            let object = row.object.ok_or(ListFault::NoObject)?;
            if !self.admits(index, object_meta::json_item(object.get().as_bytes()))? {
                return Ok(());
            }
        }
        let leg = &self.legs[index];
        if let Some(alignment) = &leg.alignment {
            self.writer.row(raw.clone(), &row, alignment, &leg.of.cluster);
        }
        Ok(())
    }

    fn admits(&mut self, index: usize, meta: Option<ObjectMeta<'_>>) -> Result<bool, ListFault> {
        let meta = meta.ok_or(ListFault::Broken("an object whose metadata cannot be read"))?;
        let leg = &mut self.legs[index];
        if leg
            .of
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.admits_object(&meta))
        {
            leg.left_out += 1;
            return Ok(false);
        }
        Ok(self.selection.takes(index, &meta))
    }

    fn fail(&mut self, leg: usize, fault: ListFault) -> ListError {
        let error = self.error(leg, fault);
        self.failed = Some(error.clone());
        error
    }

    fn error(&self, leg: usize, fault: ListFault) -> ListError {
        let cluster = self
            .legs
            .get(leg)
            .map_or_else(|| Arc::from(""), |leg| leg.of.cluster.clone());
        ListError { leg, cluster, fault }
    }
}

impl Leg {
    fn new(reader: Reader, of: ListLeg) -> Self {
        Self {
            of,
            reader,
            pending: VecDeque::new(),
            headed: false,
            ended: false,
            some: false,
            left_out: 0,
            alignment: None,
        }
    }
}
