// The entry: the host imports this file and looks for a component under the name of each React app of the plugin.

import { RetryChain } from "./chain.js";
import { RetryChains } from "./lists.js";
import { FaultTolerance } from "./page.js";

Object.assign(globalThis, { "Retry chain": RetryChain, "Retry chains": RetryChains, "Fault tolerance": FaultTolerance });
