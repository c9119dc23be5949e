/** The contract as generated: messages, their schemas and services of `openclaw_rl.v1`. */
export * from "./gen/openclaw_rl/v1/common_pb.js";
export * from "./gen/openclaw_rl/v1/component_pb.js";
export * from "./gen/openclaw_rl/v1/environment_pb.js";
export * from "./gen/openclaw_rl/v1/judge_pb.js";
export * from "./gen/openclaw_rl/v1/playbook_pb.js";
export * from "./gen/openclaw_rl/v1/policy_pb.js";
export * from "./gen/openclaw_rl/v1/trainer_pb.js";
export * from "./gen/openclaw_rl/v1/turn_pb.js";
export * from "./gen/openclaw_rl/v1/weights_pb.js";
