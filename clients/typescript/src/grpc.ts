/** What servers of a mesh also speak: error details, health and reflection, as generated. */
export * from "./gen/google/rpc/error_details_pb.js";
export * from "./gen/google/rpc/status_pb.js";
export * from "./gen/grpc/health/v1/health_pb.js";
export * from "./gen/grpc/reflection/v1/reflection_pb.js";
