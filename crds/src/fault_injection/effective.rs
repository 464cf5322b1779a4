//! When a fault is in force.

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::schema::{TIME_OF_DAY, TIME_ZONE, rules};

/// Hours of days. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("!has(self.daysOfMonth) || self.daysOfMonth.size() == 0 || !has(self.months) || self.months.size() == 0 || self.months.exists(m, self.daysOfMonth.exists(d, d <= [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][m - 1]))",
     "no month of months has such a day: the fault would never be in force"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct EffectiveTime {
    /// From this time of day on, `HH:MM:SS`. Absent: from midnight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), regex(pattern = TIME_OF_DAY)))]
    pub start_time: Option<String>,
    /// To the end of this second of the day, `HH:MM:SS`; before startTime: on the next day, which counts as the day it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 8), regex(pattern = TIME_OF_DAY)))]
    pub end_time: Option<String>,
    /// 0 is Sunday. Absent: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 7), inner(range(min = 0, max = 6)), extend("x-kubernetes-list-type" = "atomic")))]
    pub days_of_week: Vec<i64>,
    /// 1 to 31. Absent: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 31), inner(range(min = 1, max = 31)), extend("x-kubernetes-list-type" = "atomic")))]
    pub days_of_month: Vec<i64>,
    /// 1 to 12. Absent: every month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 12), inner(range(min = 1, max = 12)), extend("x-kubernetes-list-type" = "atomic")))]
    pub months: Vec<i64>,
    /// Name of the time zone in IANA's database. Absent: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64), regex(pattern = TIME_ZONE)))]
    pub time_zone: Option<String>,
}
