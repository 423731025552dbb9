// Statistics of queries.
#include "bindings/transcript/calls.h"

namespace transcript {
namespace {

kvevict_calibration* CalibrationOf(Line& l, Objects& o) {
  return o.calibrations.Get(l.Text("calibration"));
}

kvevict_status Create(Line& l, Objects& o, Results&) {
  kvevict_calibration* calibration = nullptr;
  const auto status = kvevict_calibration_create(
      o.plans.Get(l.Text("plan")), l.Count("has_covariances"), &calibration);
  if (status == KVEVICT_OK) o.calibrations.Put(l.Text("name"), calibration);
  return status;
}

kvevict_status Observe(Line& l, Objects& o, Results&) {
  return kvevict_calibration_observe(
      CalibrationOf(l, o), l.Count("layer"),
      o.One<kvevict_plane>("plane", l.Text("queries")),
      l.Count("first_position"), l.Count("n_rows"), nullptr);
}

kvevict_status Rows(Line& l, Objects& o, Results& out) {
  uint64_t rows = 0;
  const auto status =
      kvevict_calibration_rows(CalibrationOf(l, o), l.Count("layer"), &rows);
  if (status == KVEVICT_OK) out.Add("rows", rows);
  return status;
}

kvevict_status QueryCenters(Line& l, Objects& o, Results&) {
  auto centers = std::make_unique<Buffer>("f32", l.Count("length"));
  const auto status =
      kvevict_calibration_query_centers(CalibrationOf(l, o), l.Count("layer"),
                                        centers->at<float>(), centers->length);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.Put(name, std::move(centers));
  return status;
}

kvevict_status QueryMean(Line& l, Objects& o, Results&) {
  auto mean = std::make_unique<Buffer>("f32", l.Count("length"));
  auto covariance =
      std::make_unique<Buffer>("f32", l.Count("covariance_length"));
  const auto status = kvevict_calibration_query_mean(
      CalibrationOf(l, o), l.Count("layer"), l.Count("first_position"),
      l.Count("n_positions"), mean->at<float>(), mean->length,
      covariance->length == 0 ? nullptr : covariance->at<float>(),
      covariance->length);
  const std::string name = l.Text("name");
  if (status != KVEVICT_OK) return status;
  o.Put(name + "_covariance", std::move(covariance));
  o.Put(name, std::move(mean));
  return status;
}

kvevict_status Save(Line& l, Objects& o, Results&) {
  const kvevict_calibration* calibration = CalibrationOf(l, o);
  std::size_t length = 0;
  kvevict_calibration_save(calibration, nullptr, 0, &length);
  auto saved = std::make_unique<Buffer>("u8", length);
  const auto status =
      kvevict_calibration_save(calibration, saved->at<void>(), length, nullptr);
  o.Put(l.Text("name"), std::move(saved));
  return status;
}

kvevict_status Load(Line& l, Objects& o, Results&) {
  const std::string data = l.Text("data");
  return kvevict_calibration_load(CalibrationOf(l, o), o.Data<void>(data),
                                  o.Length(data));
}

}  // namespace

void AddCalibrations(Calls* calls) {
  Calls& c = *calls;
  c["calibration_create"] = Create;
  c["calibration_destroy"] = [](Line& l, Objects& o, Results&) {
    o.calibrations.End(l.Text("calibration"));
    return KVEVICT_OK;
  };
  c["calibration_observe"] = Observe;
  c["calibration_rows"] = Rows;
  c["calibration_query_centers"] = QueryCenters;
  c["calibration_query_mean"] = QueryMean;
  c["calibration_save"] = Save;
  c["calibration_load"] = Load;
}

}  // namespace transcript
